"""Direction of the learning rate that GS302 advises from the course of the losses, against what other rates reach.

    python -m gapscope_studies.checks.loss_course ../results/checks/loss_course.json

Every network is trained at nine learning rates from the same weights. A training counts where a rate within a factor of
a hundred reaches a training accuracy that is higher by eight points or more; the better side is the truth ("either" if
both sides are within five points). The limits of `gapscope.training.loss_course` were chosen on the data sets `chosen`,
and fixed before those of `judged` were trained.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from torch import Tensor, nn

import gapscope as gs
from gapscope.training.loss_course import read_course
from gapscope_studies.checks.summary import wilson
from gapscope_studies.kit.single_file import write_study

RATES = tuple(10.0**power for power in range(-6, 3))
SAMPLES, WIDTH = 400, 64
EPOCHS, MOMENTA = (12, 40), (0.0, 0.9)
FACTOR, GAIN, EITHER = 101, 0.08, 0.05
FAMILIES = ("ReLU", "dropout", "batch norm", "four layers")
# what the advice begins with
ADVICE = {
    "lower the learning rate": "lower",
    "raise the learning rate": "raise",
    "train longer": "longer",
    "tune the learning rate": "either",
}
# a rate that is too small needs more steps
RIGHT = {("raise", "raise"), ("raise", "longer"), ("lower", "lower")}
Data = tuple[Tensor, Tensor]


def _first(x: Any, y: Any) -> Data:
    """Return 400 random samples of tables, in float32."""
    x, y = torch.as_tensor(x), torch.as_tensor(y)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:SAMPLES]
    return x[order].flatten(1).float(), y[order].long()


def _terciles(x: Tensor, y: Tensor) -> Data:
    y = y.flatten()
    return _first(x, torch.bucketize(y, y.quantile(torch.tensor([1 / 3, 2 / 3]))))


def _standardized(data: Data) -> Data:
    x, y = data
    return (x - x.mean(0)) / x.std(0).clamp_min(1e-6), y


def data_sets(part: str) -> Iterator[tuple[str, Data]]:
    """Yield name and samples of the data sets of a part.

    Args:
        part: "chosen" or "judged".
    """
    if part == "chosen":
        digits = gs.load_dataset("digits").train
        yield "digits", _first(digits.inputs, digits.y)
        for name, load in (("breast cancer", load_breast_cancer), ("wine", load_wine)):
            data = _first(*load(return_X_y=True))
            yield name, data
            yield f"{name}, standardized", _standardized(data)
        return
    images = gs.load_dataset("fashion_mnist").train.first(SAMPLES)
    yield "Fashion-MNIST", _first(images.inputs, images.y)
    for name in ("concrete", "california_housing"):
        table = gs.load_dataset(name).train
        yield f"{name}, standardized", _standardized(_terciles(table.inputs, table.y))
    data = _first(*load_iris(return_X_y=True))
    yield "iris", data
    yield "iris, standardized", _standardized(data)


def build(family: str, n_inputs: int, n_classes: int) -> nn.Sequential:
    """Return a network of a family, from the same random numbers.

    Args:
        family: One of `FAMILIES`.
        n_inputs: Number of inputs.
        n_classes: Number of classes.
    """
    torch.manual_seed(0)
    first: list[nn.Module] = [nn.Linear(n_inputs, WIDTH)]
    if family == "batch norm":
        first.append(nn.BatchNorm1d(WIDTH))
    first.append(nn.ReLU())
    if family == "dropout":
        first.append(nn.Dropout(0.5))
    for _ in range(2 if family == "four layers" else 0):
        first += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*first, nn.Linear(WIDTH, n_classes))


def _train(network: nn.Module, data: Data, spec: gs.TrainingSpec) -> dict[str, Any]:
    losses = [row["train_loss"] for row in gs.train(network, data, spec).history]
    with torch.no_grad():
        outputs = network.eval()(data[0])
    accuracy = float((outputs.argmax(1) == data[1]).double().mean())
    if not bool(outputs.isfinite().all()):
        accuracy = 0.0
    return {"losses": losses, "accuracy": accuracy, "spread": float(outputs.std(0).mean())}


def _truth(rate: float, accuracies: dict[float, float]) -> str:
    """Return the better side of a learning rate; empty if no other rate is better by `GAIN`."""
    above = max((a for r, a in accuracies.items() if rate < r <= FACTOR * rate), default=0.0)
    below = max((a for r, a in accuracies.items() if rate / FACTOR <= r < rate), default=0.0)
    if max(above, below) < accuracies[rate] + GAIN:
        return ""
    if abs(above - below) < EITHER:
        return "either"
    return "raise" if above > below else "lower"


def rows_of(data: Data) -> Iterator[dict[str, str]]:
    """Yield truth and advice of the trainings of one data set that count.

    Args:
        data: Samples.
    """
    counts = data[1].bincount().double() / len(data[1])
    uniform, constant = (
        math.log(len(counts)),
        float(-(counts * counts.clamp_min(1e-12).log()).sum()),
    )
    for family in FAMILIES:
        for momentum in MOMENTA:
            for epochs in EPOCHS:
                runs: dict[float, dict[str, Any]] = {}
                for rate in RATES:
                    spec = gs.TrainingSpec(learning_rate=rate, epochs=epochs, momentum=momentum)
                    network = build(family, data[0].shape[1], len(counts))
                    runs[rate] = _train(network, data, spec)
                accuracies = {rate: run["accuracy"] for rate, run in runs.items()}
                for rate, run in runs.items():
                    truth = _truth(rate, accuracies)
                    # one that diverged ends early, and has a finding of its own
                    if truth and len(run["losses"]) == epochs and math.isfinite(run["spread"]):
                        advice = read_course(run["losses"], constant, uniform, run["spread"])
                        said = next(
                            word
                            for start, word in ADVICE.items()
                            if advice.action.startswith(start)
                        )
                        yield {"truth": truth, "advice": said}


def run() -> dict[str, Any]:
    """Run all trainings, and return how often the direction is right."""
    parts: dict[str, Any] = {}
    for part in ("chosen", "judged"):
        tables: list[dict[str, Any]] = []
        for name, data in data_sets(part):
            rows = list(rows_of(data))
            pairs = [(row["truth"], row["advice"]) for row in rows]
            right = sum(pair in RIGHT or pair[0] == "either" for pair in pairs)
            opposite = sum(set(pair) == {"raise", "lower"} for pair in pairs)
            counts = Counter(f"{truth}: {advice}" for truth, advice in pairs)
            tables.append({"data": name, "trainings": len(rows), "right": right, "opposite": opposite,
                           "truth and advice": dict(sorted(counts.items()))})  # fmt: skip
            print(tables[-1], flush=True)
        total, right, opposite = (
            sum(t[key] for t in tables) for key in ("trainings", "right", "opposite")
        )
        parts[part] = {"trainings": total, "right": right, "opposite": opposite,
                       "fraction right": wilson(right, total), "data sets": tables}  # fmt: skip
    rule = (
        "the better side of a learning rate, within a factor of a hundred, by eight points or more"
    )
    return {"rule": rule, **parts}


if __name__ == "__main__":
    write_study(__doc__, run)
