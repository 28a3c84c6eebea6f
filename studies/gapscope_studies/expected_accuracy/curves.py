"""Continued subset runs beside hold-outs and cross-validation, against networks trained on all samples."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import gapscope as gs
from gapscope.base.errors import GapscopeError
from gapscope.base.randomness import derive_seed
from gapscope.prediction.subset_designs import folds, quarter_and_halves
from gapscope.prediction.subset_runs import continued_predictions
from gapscope.statistics.baselines import feature_matrix, rbf_ridge
from gapscope_studies.expected_accuracy.pools import (
    IMAGES,
    TABLE,
    UNSEEN,
    Configuration,
    Plan,
    in_random_order,
)
from gapscope_studies.expected_accuracy.runs import _network, data_of, on_equally_noisy, score
from gapscope_studies.expected_accuracy.stored_results import job_name

NOISES = (0.2, 0.4)
FRESH = (
    Plan("third_cifar_batch_norm", {"cifar10": UNSEEN, "cifar100": UNSEEN}, (120, 250, 400), NOISES, 24, 21),
    Plan("third_images", {"mnist": IMAGES, "fashion_mnist": IMAGES}, (120, 250, 400), NOISES, 34, 22),
    Plan("third_table", {"concrete_quartiles": TABLE, "boston_quartiles": TABLE}, (100, 150, 250), NOISES, 24, 23),
    Plan("third_regression", {"california_housing": TABLE, "concrete": TABLE}, (150, 300), (), 12, 24),
)
SHORT = 0.25


def _random(configuration: Configuration, purpose: str) -> np.random.Generator:
    return np.random.default_rng(derive_seed(configuration.seed, f"{configuration.pool} {purpose}"))


def _trained(
    configuration: Configuration, part: gs.Samples, outputs: int, name: str, full: int, share: float = 1.0
) -> tuple[nn.Module, int]:
    """Network trained on a part with (a share of) the optimizer steps of all samples, and its steps."""
    training = dict(configuration.recipe.training)
    n, batch = len(part), training["batch_size"]
    batches, batches_of_all = (math.ceil(size / min(batch, full)) for size in (n, full))
    training["epochs"] = max(1, round(share * training["epochs"] * batches_of_all / batches))
    seed = derive_seed(configuration.seed, name) % 2**31
    network = _network(dataclasses.replace(configuration, seed=seed), tuple(part.inputs.shape[1:]), outputs)
    result = gs.train(network, part, gs.TrainingSpec.from_dict(training), seed=seed)
    return network.eval(), len(result.history) * batches


def _right(predictions: torch.Tensor, samples: gs.Samples) -> np.ndarray:
    """1 or 0 per sample, for regression what it adds to R2 (of targets with variance 1)."""
    assert samples.targets is not None
    if samples.is_classification:
        return (predictions.argmax(1) == samples.targets).double().numpy()
    return (1 - (predictions - samples.targets.double()).square().mean(1)).numpy()


def _outputs(network: nn.Module, samples: gs.Samples) -> torch.Tensor:
    with torch.no_grad():
        return network(samples.inputs).double()


def halves(configuration: Configuration, train: gs.Samples, outputs: int) -> dict[str, Any]:
    """Scores of both halves, as trained and continued, for all and for a quarter of the steps; kernel readings."""
    n = len(train)
    labels, classes = train.targets, outputs if train.is_classification else None
    assert labels is not None
    features = feature_matrix(train.inputs)
    row = rbf_ridge(features, labels, n_classes=classes)
    right = _right(row.predictions, train)
    _, first, second = quarter_and_halves(np.arange(n), _random(configuration, "halves"))
    found: dict[str, Any] = {"rbf": float(right.mean())}
    half_scores = []
    for split in (first, second):
        a = torch.from_numpy(split.trained)
        half = rbf_ridge(features[a], labels[a], n_classes=classes)
        half_scores.append(_right(half.predictions, train.subset(a)))
    found["rbf_half"] = float(np.concatenate(half_scores).mean())
    for name, share in (("long", 1.0), ("short", SHORT)):
        readings = []
        for split in (first, second):
            seen, unseen = (train.subset(torch.from_numpy(part)) for part in (split.trained, split.scored))
            start = time.process_time()
            network, steps = _trained(configuration, seen, outputs, f"{name} {split.name}", n, share)
            seconds = time.process_time() - start
            raw, fit = (_right(_outputs(network, part), part) for part in (unseen, seen))
            kernel_of_unseen, kernel_of_seen = right[split.scored], right[split.trained]
            row_of_split = {
                "raw": raw.mean(), "continued": _right(continued_predictions(network, unseen), unseen).mean(),
                "fit": fit.mean(), "steps": steps, "seconds": seconds,
            }  # fmt: skip
            if train.is_classification:
                row_of_split |= {
                    "wrong_if_kernel_right": ((1 - raw) * kernel_of_unseen).mean(),
                    "right_if_kernel_wrong": (raw * (1 - kernel_of_unseen)).mean(),
                    "fit_if_kernel_wrong": (fit * (1 - kernel_of_seen)).mean(),
                }
            readings.append(row_of_split)
        found |= {f"{name}.{key}": float(np.mean([each[key] for each in readings])) for key in readings[0]}
        found |= {f"{name}.{key}_one": float(readings[0][key]) for key in ("raw", "continued")}
    if train.is_classification:
        found |= _noise(train)
    return found


def _noise(train: gs.Samples) -> dict[str, Any]:
    try:
        noise = gs.estimate_label_noise(None, train)
    except GapscopeError:
        return {"noise_rate": None}
    return {"noise_rate": noise.rate, "noise_low": noise.low, "noise_high": noise.high}


def _validated(network: nn.Module, held: gs.Samples, seen: gs.Samples, truth: float) -> list[float]:
    one = gs.validated_accuracy(network, held, seen)
    return [one.score - truth, one.low - truth, one.high - truth,
            one.plain_score - truth, one.plain_low - truth, one.plain_high - truth]  # fmt: skip


def rivals(configuration: Configuration, train: gs.Samples, test: gs.Samples, outputs: int) -> dict[str, Any]:
    """Network trained on everything, five folds, and validation accuracy on the folds' networks."""
    n = len(train)

    def truth_of(network: nn.Module) -> float:
        return on_equally_noisy(score(network, test), configuration.noise, outputs)

    start = time.process_time()
    network, steps = _trained(configuration, train, outputs, "all", n)
    found: dict[str, Any] = {
        "seconds": time.process_time() - start, "steps": steps, "truth": truth_of(network),
        "clean_truth": score(network, test), "train_score": score(network, train),
    }  # fmt: skip
    scores, fold_steps, seconds = [], 0, time.process_time()
    networks = []
    splits = folds(np.arange(n), 5, _random(configuration, "folds"))
    for split in splits:
        seen, unseen = (train.subset(torch.from_numpy(part)) for part in (split.trained, split.scored))
        part, steps = _trained(configuration, seen, outputs, split.name, n)
        fold_steps += steps
        scores.append(_right(_outputs(part, unseen), unseen))
        networks.append((part, seen, unseen))
    found |= {"folds": float(np.concatenate(scores).mean()), "hold_out": float(scores[0].mean()),
              "folds.steps": fold_steps, "folds.seconds": time.process_time() - seconds}  # fmt: skip
    fifth, tenth = [], []
    for part, seen, unseen in networks:
        truth = truth_of(part)
        fifth.append(_validated(part, unseen, seen, truth))
        middle = len(unseen) // 2
        for few in (torch.arange(middle), torch.arange(middle, len(unseen))):
            tenth.append(_validated(part, unseen.subset(few), seen, truth))
    return found | {"validated.fifth": fifth, "validated.tenth": tenth}


def estimates(configuration: Configuration, train: gs.Samples, outputs: int) -> dict[str, Any]:
    """`estimate_accuracy` of the network trained on everything, with and without its initial weights."""
    n = len(train)
    network, _ = _trained(configuration, train, outputs, "all", n)
    seed = derive_seed(configuration.seed, "all") % 2**31
    before = _network(dataclasses.replace(configuration, seed=seed), tuple(train.inputs.shape[1:]), outputs)
    found: dict[str, Any] = {}
    for name, state in (("given", before.state_dict()), ("resampled", None)):
        start = time.process_time()
        try:
            one = gs.estimate_accuracy(network, train, initial_state=state)
        except GapscopeError as error:
            found[f"estimate.{name}"] = str(error)[:80]
            continue
        for line in ("same_noise", "clean_labels"):
            answer = getattr(one, line)
            found[f"estimate.{name}.{line}"] = None if answer is None else [answer.value, answer.low, answer.high]
        found[f"estimate.{name}.seconds"] = time.process_time() - start
        found[f"estimate.{name}.noise"] = one.label_noise
        found[f"estimate.{name}.abstained"] = (*one.abstained_because, one.clean_abstained_because)[0][:80]
    return found


def fresh_configurations() -> list[Configuration]:
    """Networks to judge on: those of each pool spread evenly over the order."""
    drawn = [(number / len(part), item) for part in map(in_random_order, FRESH) for number, item in enumerate(part)]
    return [item for _, item in sorted(drawn, key=lambda pair: pair[0])]


def read(configuration: Configuration, root: str | None = None) -> dict[str, Any]:
    """Everything of one fresh network; JSON-serializable values."""
    train, test, outputs = data_of(configuration, root)
    found = configuration.facts() | {"name": job_name(configuration), "classes": outputs}
    found |= halves(configuration, train, outputs) | rivals(configuration, train, test, outputs)
    return found | (estimates(configuration, train, outputs) if train.is_classification else {})


def main(path: Path, until: float) -> None:
    """Append one line per fresh network to a file until a time; resumable."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    done = {json.loads(line)["name"] for line in path.read_text().splitlines()} if path.exists() else set()
    for item in fresh_configurations():
        if job_name(item) in done or time.time() > until:
            continue
        found = read(item)
        with path.open("a") as file:
            file.write(json.dumps(found) + "\n")
        print(time.strftime("%H:%M:%S"), round(time.process_time()), item.name[:110], flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
