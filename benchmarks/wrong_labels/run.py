"""Wrong labels: gapscope before and from one training, beside cleanlab's five folds and a ranking by the loss.

    python benchmarks/wrong_labels/run.py --kept DIR --out benchmarks/results/wrong_labels.json

Every cell is one data set, one kind of noise, one rate and one seed, with samples, network and wrong labels of its own.
Four methods see the same labels: gapscope's (the kernel of the untrained network), gapscope's from one training of 20
epochs in which 5 % of the samples are canaries (these are not judged), cleanlab's (five training runs, out-of-sample
probabilities, its self-confidence ranking and its estimate of the number of errors), and the loss of one network after
ten epochs. The area under the ROC curve (AUROC), precision where 90 % of the wrong labels are found, the
error of the rate, and CPU seconds of one thread are kept a cell; finished cells are not run again. Needs cleanlab.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch
from sklearn.metrics import precision_recall_curve, roc_auc_score
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.environment import environment
from gapscope.base.files import to_json
from gapscope.base.randomness import derive_seed
from gapscope.data import inject_label_noise, load_dataset
from gapscope.inspection.losses import sample_losses
from gapscope.pools.jobs import run_cached

RATES = (0.05, 0.1, 0.2, 0.4)
KINDS = ("symmetric", "pair-wise", "instance-dependent")
FOLDS, EARLY, WATCHED = 5, 10, 20
CANARIES = 0.05
METHODS = ("gapscope", "one_training", "cleanlab", "loss")
TRAINING = gs.TrainingSpec(
    optimizer="adam", learning_rate=0.002, batch_size=50, epochs=30, stop_at_train_loss=0.05
)


@dataclass(frozen=True)
class Set:
    """A data set, how many of its samples, and the network that is trained on them."""

    data: str
    samples: int
    network: str
    options: dict[str, Any]


SETS = {
    "digits, fully connected": Set(
        "digits", 1000, "fully_connected", {"n_hidden": 2, "width": 128}
    ),
    "MNIST, fully connected": Set("mnist", 1000, "fully_connected", {"n_hidden": 2, "width": 128}),
    "Fashion-MNIST, LeNet-5": Set("fashion_mnist", 1000, "lenet5", {}),
    "CIFAR-10, CNN": Set("cifar10", 800, "small_cnn", {"width_multiplier": 0.25}),
}


def pair_wise(labels: Tensor, rate: float, n_classes: int, generator: torch.Generator) -> Tensor:
    """A fraction of the labels becomes the next class."""
    chosen = torch.randperm(len(labels), generator=generator)[: round(rate * len(labels))]
    noisy = labels.clone()
    noisy[chosen] = (labels[chosen] + 1) % n_classes
    return noisy


def instance_dependent(
    inputs: Tensor, labels: Tensor, rate: float, n_classes: int, generator: torch.Generator
) -> Tensor:
    """Each sample errs with its own probability, and towards the class that a random linear map of it says.

    After Xia et al. 2020 (arXiv:2006.07836): probabilities from a normal distribution about the rate, cut to [0, 1].
    """
    x = inputs.flatten(1)
    x = (x - x.mean(0)) / (x.std(0) + 1e-6) / x.shape[1] ** 0.5
    maps = torch.randn(n_classes, x.shape[1], n_classes, generator=generator)
    odds = (
        torch.einsum("nd,ndc->nc", x, maps[labels])
        .scatter(1, labels[:, None], -torch.inf)
        .softmax(1)
    )
    errs = torch.rand(len(x), generator=generator) < (
        rate + 0.1 * torch.randn(len(x), generator=generator)
    ).clamp(0, 1)
    return torch.where(errs, torch.multinomial(odds, 1, generator=generator).squeeze(1), labels)


def cell_data(
    chosen: Set, kind: str, rate: float, seed: int, root: str | None
) -> tuple[gs.Samples, Tensor, int]:
    """Samples with their labels as given, which of them are wrong, and the number of classes."""
    problem = load_dataset(chosen.data, root=root)
    generator = torch.Generator().manual_seed(derive_seed(seed, f"{chosen.data} {kind} {rate}"))
    train = problem.train.subset(
        torch.randperm(len(problem.train), generator=generator)[: chosen.samples]
    )
    classes = problem.n_outputs
    assert train.targets is not None
    noisy = {
        "symmetric": partial(inject_label_noise, train.targets, rate, classes, generator),
        "pair-wise": partial(pair_wise, train.targets, rate, classes, generator),
        "instance-dependent": partial(
            instance_dependent, train.inputs, train.targets, rate, classes, generator
        ),
    }[kind]()
    return gs.Samples(train.inputs, noisy), noisy != train.targets, classes


def build(chosen: Set, samples: gs.Samples, classes: int, seed: int) -> nn.Module:
    """The network with its initial weights."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "initial weights"))
    shape = tuple(samples.inputs.shape[1:])
    return gs.build_network(
        chosen.network, input_shape=shape, n_outputs=classes, generator=generator, **chosen.options
    )


def trained(chosen: Set, samples: gs.Samples, classes: int, seed: int, **changes: Any) -> nn.Module:
    """The network, trained on these samples."""
    network = build(chosen, samples, classes, seed)
    gs.train(network, samples, gs.TrainingSpec.from_dict(TRAINING.to_dict() | changes), seed=seed)
    return network.eval()


def before_training(
    network: nn.Module, samples: gs.Samples
) -> tuple[np.ndarray, float, dict[str, float]]:
    """gapscope: suspicion a sample, rate (NaN where it refuses), and its own cut."""
    result = gs.find_label_issues(network, samples)
    suspicion = np.empty(len(samples))
    suspicion[result.indices.numpy()] = -result.margin.numpy()
    rate = float("nan") if result.noise is None else result.noise.rate
    facts = {"flagged": result.n_flagged, "expected_precision": result.expected_precision}
    if result.noise is not None:
        facts |= {"low": result.noise.low, "high": result.noise.high}
    return suspicion, rate, facts


def one_training(
    chosen: Set, samples: gs.Samples, classes: int, seed: int
) -> tuple[np.ndarray, float, dict[str, float]]:
    """gapscope, from one training with canaries, which have no suspicion of their own (NaN)."""
    assert samples.targets is not None
    n = len(samples)
    canaries = gs.Canaries(
        samples.targets, n_classes=classes, number=round(CANARIES * n), seed=seed
    )
    trained_on = (samples.inputs, canaries.labels)
    monitor = gs.Monitor(
        trained_on,
        [],
        n_samples=n,
        alarm=gs.CanaryAlarm(canaries, restore=False),
        max_time_fraction=None,
    )
    settings = TRAINING.to_dict() | {"epochs": WATCHED, "stop_at_train_loss": None}
    network = build(chosen, samples, classes, seed)
    gs.train(network, trained_on, gs.TrainingSpec.from_dict(settings), seed=seed, on_epoch=monitor)
    result = gs.find_label_issues(monitor, seed=seed)
    suspicion = np.full(n, np.nan)
    suspicion[result.indices.numpy()] = -result.margin.numpy()
    facts = {"flagged": result.n_flagged, "expected_precision": result.expected_precision}
    if result.noise is None:
        return suspicion, float("nan"), facts
    return (
        suspicion,
        result.noise.rate,
        facts | {"low": result.noise.low, "high": result.noise.high},
    )


def five_folds(
    chosen: Set, samples: gs.Samples, classes: int, seed: int
) -> tuple[np.ndarray, float, dict[str, float]]:
    """cleanlab, on out-of-sample probabilities of five training runs."""
    from cleanlab.count import num_label_issues  # pyright: ignore[reportMissingImports]
    from cleanlab.rank import get_self_confidence_for_each_label  # pyright: ignore[reportMissingImports]

    n = len(samples)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(derive_seed(seed, "folds")))
    probabilities = torch.empty(n, classes)
    for fold in order.chunk(FOLDS):
        network = trained(chosen, samples.subset(order[~torch.isin(order, fold)]), classes, seed)
        with torch.no_grad():
            probabilities[fold] = network(samples.inputs[fold]).softmax(1)
    assert samples.targets is not None
    labels, p = samples.targets.numpy(), probabilities.double().numpy()
    confidence = get_self_confidence_for_each_label(labels, p)
    return -confidence, float(num_label_issues(labels, p)) / n, {}


def early_loss(
    chosen: Set, samples: gs.Samples, classes: int, seed: int
) -> tuple[np.ndarray, float, dict[str, float]]:
    """The loss of each sample after a few epochs, which says nothing of the rate."""
    network = trained(chosen, samples, classes, seed, epochs=EARLY)
    assert samples.targets is not None
    with torch.no_grad():
        return sample_losses(network(samples.inputs), samples.targets).numpy(), float("nan"), {}


def judged(
    method: Callable[[], tuple[np.ndarray, float, dict[str, float]]], wrong: np.ndarray
) -> dict[str, float]:
    """Scores of one method on the samples that it judges, and its CPU seconds."""
    start = time.process_time()
    suspicion, rate, facts = method()
    seconds = time.process_time() - start
    judges = ~np.isnan(suspicion)
    wrong, suspicion = wrong[judges], suspicion[judges]
    precision, recall, _ = precision_recall_curve(wrong, suspicion)
    return facts | {
        "auroc": float(roc_auc_score(wrong, suspicion)),
        "precision_at_recall_90": float(precision[recall >= 0.9].max()),
        "rate": rate,
        "seconds": seconds,
    }


def cell(name: str, kind: str, rate: float, seed: int, root: str | None) -> dict[str, Any]:
    """All methods on one cell."""
    chosen = SETS[name]
    samples, wrong, classes = cell_data(chosen, kind, rate, seed, root)
    network = build(chosen, samples, classes, seed)
    methods = {
        "gapscope": partial(before_training, network, samples),
        "one_training": partial(one_training, chosen, samples, classes, seed),
        "cleanlab": partial(five_folds, chosen, samples, classes, seed),
        "loss": partial(early_loss, chosen, samples, classes, seed),
    }
    facts = {
        "set": name,
        "kind": kind,
        "asked": rate,
        "seed": seed,
        "wrong": float(wrong.double().mean()),
    }
    return facts | {method: judged(run, wrong.numpy()) for method, run in methods.items()}


def summary(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over kinds, rates and seeds, a row a data set and method; every cell has its own samples."""
    rows = []
    for name in dict.fromkeys(one["set"] for one in cells):
        for method in METHODS:
            table = pandas.DataFrame(
                [one[method] | {"wrong": one["wrong"]} for one in cells if one["set"] == name]
            )
            # what is kept as JSON has words for what is not finite
            rate, low, high = (
                table.get(name, pandas.Series(dtype=float)).reindex(table.index).astype(float)
                for name in ("rate", "low", "high")
            )
            error, bounded = (rate - table["wrong"]).abs(), low.notna()
            inside = ((low <= table["wrong"]) & (table["wrong"] <= high))[bounded]
            rows.append(
                {
                    "set": name, "method": method, "cells": len(table), "auroc": table["auroc"].mean(),
                    "precision_at_recall_90": table["precision_at_recall_90"].mean(),
                    "error_of_rate": error.mean(), "largest_error_of_rate": error.max(),
                    "refused": int(rate.isna().sum()),
                    "intervals": int(bounded.sum()),
                    "interval_holds": inside.mean(),
                    "cpu_seconds": table["seconds"].median(),
                }
            )  # fmt: skip
    return rows


def main() -> None:
    """Run the cells that are not kept yet, and write all of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kept", type=Path, required=True, help="folder of finished cells")
    parser.add_argument("--out", type=Path, help="JSON with all cells and their summary")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--data-root", default=None)
    parser.add_argument(
        "--finished-only", action="store_true", help="sum up what is kept, and run nothing"
    )
    parser.add_argument("--busy", action="store_true", help="say that other programs ran beside")
    given = parser.parse_args()
    # cheap data sets first, each with all kinds and rates: a table of what is finished compares like with like
    jobs = {
        f"{name} {kind} {rate} {seed}": partial(cell, name, kind, rate, seed, given.data_root)
        for seed in range(100, 100 + given.seeds) for name in given.sets for rate in RATES for kind in KINDS
    }  # fmt: skip
    if given.finished_only:
        jobs = {name: job for name, job in jobs.items() if (given.kept / f"{name}.json").exists()}
    result = run_cached(
        jobs,
        given.kept,
        workers=1,
        on_done=lambda name, done, of: print(f"{done}/{of} {name}", flush=True),
    )
    rows = summary(list(result.values()))
    print(pandas.DataFrame(rows).to_string(index=False, float_format="{:.3f}".format))
    if given.out:
        content = {
            "environment": environment(),
            "busy": given.busy,
            "sets": {k: asdict(v) for k, v in SETS.items()},
        }
        given.out.write_text(
            to_json(content | {"summary": rows, "cells": list(result.values())}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
