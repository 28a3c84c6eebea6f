"""Selection of a pretrained network: forecasts before fine-tuning and accuracy after it.

Protocol, fixed before the first network was fine-tuned: five networks, four targets, 100 and 300 training images with
three seeds, a new linear head, all weights trained by SGD. The learning rate of a network on a target is the one of
three with the best accuracy on a fifth of the 300 images of seed 0. 1,000 images were planned, too, and cut before any
accuracy was known. Truth: accuracy on 800 other images. Forecasts: `gapscope.rank_networks` on the training images with
the head from which the fine-tune starts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import gapscope as gs
from gapscope.accuracy.ranking_result import instantiate
from gapscope.base.randomness import derive_seed
from gapscope.base.samples import Samples
from gapscope.data.location import data_root
from gapscope.statistics.correlations import kendall_tau
from gapscope_studies.expected_accuracy.rows import (
    error_claim,
    find_row,
    hashes_of,
    rms_error,
    root_mean_square,
    scale_rows,
    to_numbers,
    to_table,
)
from gapscope_studies.kit.statistics import bootstrap, bootstrap_mean
from gapscope_studies.kit.study import Outcome, RunSettings, Table

# --- networks pretrained on CIFAR-10: published ResNets, a VGG-11 and an MLP trained here

PIXEL_MEAN, PIXEL_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
IMAGES, PRETRAINING_EPOCHS = 10_000, 12


class _Block(nn.Module):
    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.stride, self.padding = stride, (width - width_in) // 2

    def forward(self, x: Tensor) -> Tensor:
        branch = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        shortcut = x[:, :, :: self.stride, :: self.stride]
        return torch.relu(
            branch + nn.functional.pad(shortcut, (0, 0, 0, 0, self.padding, self.padding))
        )


class CifarResNet(nn.Module):
    """ResNet of 6 `n_blocks` + 2 layers for CIFAR-10 (He et al. 2016, section 4.2, option A)."""

    def __init__(self, n_blocks: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        width_in = 16
        for stage, width in enumerate((16, 32, 64), start=1):
            strides = [1 if stage == 1 else 2] + [1] * (n_blocks - 1)
            blocks = [
                _Block(width_in if i == 0 else width, width, stride)
                for i, stride in enumerate(strides)
            ]
            self.add_module(f"layer{stage}", nn.Sequential(*blocks))
            width_in = width
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of normalized RGB images."""
        x = torch.relu(self.bn1(self.conv1(x)))
        for stage in (1, 2, 3):
            x = self.get_submodule(f"layer{stage}")(x)
        return self.linear(x.mean((2, 3)))


def _resnet(n_blocks: int, *, pretrained: bool, root: str | None) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(0, f"ResNet of {n_blocks} blocks"))
        network = CifarResNet(n_blocks)
    if pretrained:
        weights = load_file(
            data_root(root) / "pretrained_cifar10" / f"resnet{6 * n_blocks + 2}.safetensors"
        )
        # the files lack the counters of batch norm
        network.load_state_dict(weights, strict=False)
    return network.eval()


def _load_or_train(name: str, options: dict[str, Any], root: str | None, folder: Path) -> nn.Module:
    generator = torch.Generator().manual_seed(derive_seed(0, name))
    network = gs.build_network(
        name, input_shape=(3, 32, 32), n_outputs=10, generator=generator, **options
    )
    path = folder / f"{name}.safetensors"
    if not path.exists():
        train = gs.load_dataset("cifar10", root=root).train
        data = normalize(train.inputs[:IMAGES]), train.y[:IMAGES]
        spec = gs.TrainingSpec(
            epochs=PRETRAINING_EPOCHS, batch_size=64, optimizer="adam", learning_rate=1e-3
        )
        gs.train(network, data, spec, seed=0)
        folder.mkdir(parents=True, exist_ok=True)
        save_file(network.state_dict(), path)
    network.load_state_dict(load_file(path))
    return network.eval()


def normalize(x: Tensor) -> Tensor:
    """Normalize RGB images in [0, 1] for the pretrained networks."""
    return (x - torch.tensor(PIXEL_MEAN)[:, None, None]) / torch.tensor(PIXEL_STD)[:, None, None]


NETWORKS = ("ResNet-20", "ResNet-44", "ResNet-20, untrained", "VGG-11", "fully connected")


def build_pretrained(name: str, root: str | None, folder: Path) -> nn.Module:
    """Return one of `NETWORKS` with ten outputs. Those trained here are cached in a folder."""
    if name == "VGG-11":
        return _load_or_train("vgg11", {"width_multiplier": 0.25}, root, folder)
    if name == "fully connected":
        return _load_or_train("fully_connected", {"n_hidden": 2, "width": 256}, root, folder)
    return _resnet(7 if "44" in name else 3, pretrained="untrained" not in name, root=root)


# --- fine-tuning

TARGETS = {"CIFAR-100, 20 classes": "cifar100", "Fashion-MNIST": "fashion_mnist", "MNIST": "mnist",
           "CIFAR-10, blurred": "cifar10"}  # fmt: skip
SIZES = {100: 3, 300: 3}  # training images -> seeds
EPOCHS = {100: 30, 300: 15}
RATES = (0.003, 0.01, 0.03)
TEST, BLUR = 800, 1.5
TRUTH = "accuracy reached"
OURS = {"forecast": "expected_accuracy", "NTK reading": "ntk_accuracy", "features reading (linear probe)":
        "features_accuracy"}  # fmt: skip
BASELINES = {"parameter count": "parameters", "depth": "layers", "LogME": "log_evidence", "SynFlow": "synaptic_flow",
             "Jacobian covariance": "jacobian_covariance", "SNIP": "connection_sensitivity"}  # fmt: skip
SCORES = OURS | BASELINES


def _blur(x: Tensor) -> Tensor:
    offsets = torch.arange(-4, 5.0)
    weights = torch.exp(-offsets.square() / (2 * BLUR**2))
    weights = (weights / weights.sum()).expand(3, 1, 1, -1)
    x = torch.nn.functional.conv2d(x, weights, padding=(0, 4), groups=3)
    return torch.nn.functional.conv2d(x, weights.mT, padding=(4, 0), groups=3)


def target_images(target: str, n: int, seed: int, root: str | None) -> tuple[Samples, Samples]:
    """Return training and test images of a target, ready for the pretrained networks."""
    problem = gs.load_dataset(TARGETS[target], root=root)
    # the networks were trained on the training images of CIFAR-10: half of its test images replace them
    pool = problem.test if target.startswith("CIFAR-10,") else problem.train
    assert pool is not None and problem.test is not None
    generator = torch.Generator().manual_seed(derive_seed(seed, f"images of {target}"))
    order = torch.randperm(
        len(pool) // 2 if pool is problem.test else len(pool), generator=generator
    )
    test = torch.arange(len(problem.test) - TEST, len(problem.test))

    def prepare(samples: Samples, rows: Tensor) -> Samples:
        x, y = samples.inputs[rows].float(), samples.y
        if x.shape[1] == 1:
            x = torch.nn.functional.pad(x, (2, 2, 2, 2)).expand(-1, 3, -1, -1)
        return Samples(normalize(_blur(x) if target.endswith("blurred") else x), y[rows])

    return prepare(pool, order[:n]), prepare(problem.test, test)


def _fine_tuned_accuracy(
    name: str,
    train: Samples,
    test: Samples,
    n: int,
    rate: float,
    seed: int,
    root: str | None,
    folder: Path,
) -> float:
    initial = (build_pretrained(name, root, folder), "new")  # with a new head
    network = instantiate(name, initial, train, derive_seed(seed, "initialization 0"))
    assert isinstance(network, torch.nn.Module)
    spec = gs.TrainingSpec.from_dict(
        {"optimizer": "sgd", "momentum": 0.9, "batch_size": 25, "epochs": EPOCHS[n], "learning_rate": rate,
         "schedule": "step", "schedule_epochs": 2 * EPOCHS[n] // 3}
    )  # fmt: skip
    gs.train(network, train, spec, seed=seed)
    network.eval()
    with torch.no_grad():
        predictions = torch.cat([network(part).argmax(1) for part in test.inputs.split(100)])
    return float((predictions == test.y).double().mean())


def choose_rate(name: str, target: str, root: str | None, folder: Path) -> dict[str, Any]:
    """Return the accuracy on the held-out fifth for every learning rate, and the best rate."""
    torch.set_num_threads(1)
    train, _ = target_images(target, 300, 0, root)
    part, held_out = train.subset(torch.arange(240)), train.subset(torch.arange(240, 300))
    accuracies = [
        _fine_tuned_accuracy(name, part, held_out, 300, rate, 0, root, folder) for rate in RATES
    ]
    return {"accuracies": accuracies, "rate": RATES[int(np.argmax(accuracies))]}


def fine_tune(
    name: str, target: str, n: int, seed: int, rate: float, root: str | None, folder: Path
) -> dict[str, Any]:
    """Return the accuracy that a fine-tune reaches."""
    torch.set_num_threads(1)
    train, test = target_images(target, n, seed, root)
    start = time.process_time()
    accuracy = _fine_tuned_accuracy(name, train, test, n, rate, seed, root, folder)
    return {TRUTH: accuracy, "fine_tune_seconds": time.process_time() - start}


def read(
    name: str, target: str, n: int, seed: int, root: str | None, folder: Path
) -> dict[str, Any]:
    """Return the readings before a fine-tune."""
    torch.set_num_threads(1)
    train, _ = target_images(target, n, seed, root)
    start = time.process_time()
    network = build_pretrained(name, root, folder)
    (row,) = gs.rank_networks({name: (network, "new")}, train, seed=seed, initializations=2)
    return {"network": name, "target": target, "n": n, "seed": seed, "low": row.low, "high": row.high,
            "seconds": time.process_time() - start,
            **{score: getattr(row, attribute) for score, attribute in SCORES.items()}}  # fmt: skip


def _row(table: Table, score: str) -> dict[str, Any]:
    """Return mean tau and regret of choices on the same images, with intervals over targets."""
    table = table.assign(
        **{score: table[score].astype(float).fillna(table[score].astype(float).min() - 1)}
    )
    targets, taus, regrets = [], [], []
    for (_, _, target), part in table.groupby(["n", "seed", "target"], sort=False):
        values, truth = part[[score, TRUTH]].to_numpy(dtype=float).T
        targets.append(target)
        taus.append(kendall_tau(values, truth))
        # accuracy of the best network minus that of the one with the largest score, in points
        regrets.append(100 * float(truth.max() - truth[values.argmax()]))
    tau, loss = (bootstrap_mean(values, targets, draws=500) for values in (taus, regrets))
    row: dict[str, Any] = {"score": score, "tau": tau, "regret in points": loss}
    if score in OURS:
        errors = table[score] - table[TRUTH]
        row["error"] = rms_error(errors, table["target"].tolist()).within(0, math.inf)
        row["bias"] = float(errors.mean())
    return row


def diagnose(readings: Mapping[str, Any], rates: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the AUROC of two numbers for fine-tunes with a poor learning rate.

    Another rate improves these by more than ten points on the held-out fifth. Added after the first results.
    """
    from sklearn.metrics import roc_auc_score

    rows = pandas.DataFrame([
        {"target": reading["target"], "accuracy": accuracy, "faulty": accuracy < max(choice["accuracies"]) - 0.1,
         "distance": reading["forecast"] - accuracy}
        for choice, reading in ((rates[name], readings[f"{name} n 300 seed 0"]) for name in rates)
        for accuracy in choice["accuracies"]
    ])  # fmt: skip

    def area(index: np.ndarray, column: str, sign: int) -> float:
        part = rows.iloc[index]
        return (
            float(roc_auc_score(part["faulty"], sign * part[column]))
            if part["faulty"].nunique() == 2
            else 0.5
        )

    result = []
    for name, column, sign in (
        ("forecast minus accuracy", "distance", 1),
        ("accuracy alone", "accuracy", -1),
    ):
        statistic = partial(area, column=column, sign=sign)
        interval = bootstrap(statistic, len(rows), rows["target"].tolist(), draws=500).within(0, 1)
        result.append(
            {
                "number": name,
                "AUROC": interval,
                "faulty": int(rows["faulty"].sum()),
                "of": len(rows),
            }
        )
    return result


def pretrained(setting: RunSettings) -> Outcome:
    """Evaluate the error of the forecast, and Kendall's tau and regret of every score."""
    targets = setting.choose(smoke=("MNIST",), small=tuple(TARGETS), paper=tuple(TARGETS))
    names = setting.choose(
        smoke=("ResNet-20", "ResNet-20, untrained"), small=NETWORKS, paper=NETWORKS
    )
    sizes = setting.choose(smoke={100: 1}, small=SIZES, paper=dict.fromkeys(SIZES, 10))
    place = setting.data_root, setting.work / "pretrained networks"
    rates = setting.cached("pretrained rates", {
        f"{name} on {target}": partial(choose_rate, name, target, *place)
        for target in targets for name in names
    })  # fmt: skip
    cells = [
        (name, target, n, seed)
        for n, seeds in sizes.items() for seed in range(seeds) for target in targets for name in names
    ]  # fmt: skip
    labels = [f"{name} on {target} n {n} seed {seed}" for name, target, n, seed in cells]
    reached = setting.cached("pretrained fine-tunes", {
        label: partial(fine_tune, *cell, rates[f"{cell[0]} on {cell[1]}"]["rate"], *place)
        for label, cell in zip(labels, cells, strict=True)
    })  # fmt: skip
    readings = setting.cached("pretrained readings", {
        label: partial(read, *cell, *place) for label, cell in zip(labels, cells, strict=True)
    })  # fmt: skip
    table = pandas.DataFrame([readings[label] | reached[label] for label in labels])
    rows = sorted((_row(table, score) for score in SCORES), key=lambda row: -row["tau"].value)
    covered = table[TRUTH].between(table["low"], table["high"])

    errors = [
        {
            "target": target,
            **{reading: root_mean_square(part[reading] - part[TRUTH]) for reading in OURS},
        }
        for target, part in table.groupby("target")
    ]
    diagnosis = diagnose(readings, rates) if 300 in sizes else []
    tables = {
        "Scores before a fine-tune": rows,
        "Root mean squared error by target": errors,
        "Fine-tunes whose learning rate is wrong": diagnosis,
    }
    return Outcome(
        numbers={
            "rows": to_numbers(rows),
            "coverage": float(covered.mean()),
            "errors": errors,
            "diagnosis": to_numbers(diagnosis),
            "networks": table.round(4).to_dict("list"),
            "rates": {name: answer["rate"] for name, answer in rates.items()},
        },
        claims=[
            error_claim("the forecast before a fine-tune errs by less than a tenth of the accuracy",
                        "root mean squared error", find_row(rows, "score", "forecast")["error"], below=0.1,
                        unit="targets")
        ],
        tables={name: to_table(part) for name, part in tables.items() if part},
        verdict=(
            f"Targets are the units. The 90 % interval of the forecast holds {covered.mean():.0%} of the accuracies."
        ),
        stands_in_for=scale_rows({"targets": ", ".join(targets), "training images and seeds": str(sizes)}),
        seeds=list(range(max(sizes.values()))),
        data=hashes_of(setting, *{TARGETS[target] for target in targets}, "cifar10"),
    )  # fmt: skip
