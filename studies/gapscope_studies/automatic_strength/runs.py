"""One training in one way of dealing with wrong labels: a penalty, fixed or automatic, or one of its baselines."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from gapscope.base.random_streams import make_generator
from gapscope.base.samples import Samples
from gapscope.base.specs import DataSpec, LossSpec, NetworkSpec, RunSpec, TrainingSpec
from gapscope.data.corruptions import inject_label_noise
from gapscope.inspection.losses import evaluate
from gapscope.networks import build_network
from gapscope.penalties.base import make_penalty
from gapscope.pools.from_spec import prepared
from gapscope.training.loop import train

LAST = 5  # epochs whose test accuracy is averaged: single ones jump by some points


@dataclass(frozen=True)
class Method:
    """One way of dealing with wrong labels: name and options of a penalty, or of a loss; dropout; early stopping."""

    name: str
    penalty: Mapping[str, Any] | None = None
    loss: Mapping[str, Any] | None = None
    dropout: float = 0.0  # where the network has it
    held_out: float = 0.0  # fraction of the samples that is not trained on and chooses the epoch whose weights are kept


@dataclass(frozen=True)
class Run:
    """Settings of one training run."""

    scenario: Mapping[str, Any]  # name, data (without noise), network, training (without penalties)
    samples: int
    test: int
    noise: float  # fraction of wrong labels, alike among all classes
    seed: int  # of samples, noise, weights and order
    way: Method

    @property
    def name(self) -> str:
        """Return what tells it from the others."""
        return re.sub(r"[ ,]+", "_", f"{self.scenario['name']}-{self.noise:g}-{self.seed}-{self.way.name}")


def problem_of(run: Run, root: str | None) -> tuple[Samples, Samples, int]:
    """Training samples with wrong labels among them, test samples, and the number of classes."""
    problem = prepared(RunSpec(data=DataSpec.from_dict(run.scenario["data"])), root)[0]
    train, test, classes = problem.train, problem.test, problem.n_outputs
    assert train.targets is not None and test.targets is not None
    if problem.task == "regression":
        edges = train.targets[:, 0].quantile(torch.tensor([0.25, 0.5, 0.75]))
        train, test = (replace(part, targets=torch.bucketize(part.targets[:, 0], edges)) for part in (train, test))  # type: ignore[index]
        classes = 4
    chosen = torch.randperm(len(train), generator=make_generator(run.seed, "training subset"))[: run.samples]
    train, test = train.subset(chosen), test.subset(torch.arange(min(run.test, len(test))))
    assert train.targets is not None
    wrong = inject_label_noise(train.targets, run.noise, classes, make_generator(run.seed, "label noise"))
    return replace(train, targets=wrong), test, classes


def _kept(accuracies: Sequence[float], held_out: Sequence[float]) -> float:
    """Test accuracy of the last epochs, or that of the first epoch at which the held-out samples fare best."""
    if held_out:
        return accuracies[max(range(len(held_out)), key=held_out.__getitem__)]
    return sum(accuracies[-LAST:]) / LAST if len(accuracies) >= LAST else (*accuracies, 0.0)[0]


def trained(run: Run, root: str | None) -> dict[str, Any]:
    """Train, and return what is compared."""
    samples, test, classes = problem_of(run, root)
    spec = NetworkSpec.from_dict(run.scenario["network"])
    options: dict[str, Any] = {**spec.options} | ({"dropout": run.way.dropout} if run.way.dropout else {})
    shape, weights = tuple(samples.inputs.shape[1:]), make_generator(run.seed, "initial weights")
    network = build_network(spec.name, input_shape=shape, n_outputs=classes, generator=weights, **options)
    settings = TrainingSpec.from_dict(run.scenario["training"])
    if run.way.loss is not None:
        settings = replace(settings, loss=LossSpec(**run.way.loss))
    penalties = []
    if run.way.penalty is not None:
        penalties = [make_penalty(run.way.penalty["name"], run.way.penalty.get("options", {}))]
    n_out, held_out = round(run.way.held_out * len(samples)), []
    part, tenth = samples, None
    if n_out:
        order = torch.randperm(len(samples), generator=make_generator(run.seed, "split"))
        part, tenth = samples.subset(order[n_out:]), samples.subset(order[:n_out])

    def on_epoch(network: nn.Module, row: dict[str, Any]) -> None:
        if tenth is not None:
            held_out.append(evaluate(network, tenth)["accuracy"])

    start = time.process_time()
    result = train(network, part, settings, seed=run.seed, test=test, penalties=penalties, on_epoch=on_epoch)
    seconds = time.process_time() - start
    accuracies = [float(row["test_accuracy"]) for row in result.history]
    return {
        "scenario": run.scenario["name"], "noise": run.noise, "seed": run.seed, "way": run.way.name,
        "status": result.status, "cpu_seconds": round(seconds, 2), "best": max(accuracies, default=0.0),
        "final": _kept(accuracies, held_out), "accuracies": [round(value, 4) for value in accuracies],
    }  # fmt: skip
