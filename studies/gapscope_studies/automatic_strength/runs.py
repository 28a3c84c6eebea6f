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
from gapscope.data import Problem
from gapscope.data.corruptions import inject_label_noise
from gapscope.inspection.losses import evaluate
from gapscope.networks import build_network
from gapscope.penalties.base import Penalty, make_penalty
from gapscope.pools.from_spec import prepared
from gapscope.training.automatic_strength import AutomaticStrength
from gapscope.training.loop import train

LAST = 5  # epochs whose test accuracy is averaged: single ones jump by some points


@dataclass(frozen=True)
class Method:
    """One way of dealing with wrong labels.

    Attributes:
        name: What it is called in the tables.
        penalty: Name and options of a penalty; None for none.
        loss: Name and options of a loss in place of the cross-entropy.
        dropout: Probability of dropout, where the network has it.
        held_out: Fraction of the training samples that chooses the epoch whose weights are kept, and is not trained on.
    """

    name: str
    penalty: Mapping[str, Any] | None = None
    loss: Mapping[str, Any] | None = None
    dropout: float = 0.0
    held_out: float = 0.0


@dataclass(frozen=True)
class Run:
    """Settings of one training run.

    Attributes:
        scenario: Name of the data and the network.
        data: Settings of the data, without noise.
        network: The network.
        training: Its training, without penalties.
        samples: Training samples.
        test: Test samples.
        noise: Fraction of wrong labels, alike among all classes.
        seed: Seed of samples, noise, weights and order.
        way: How wrong labels are dealt with.
    """

    scenario: str
    data: Mapping[str, Any]
    network: Mapping[str, Any]
    training: Mapping[str, Any]
    samples: int
    test: int
    noise: float
    seed: int
    way: Method

    @property
    def name(self) -> str:
        """Return what tells it from the others."""
        return re.sub(r"[ ,]+", "_", f"{self.scenario}-{self.noise:g}-{self.seed}-{self.way.name}")


def _in_quartiles(problem: Problem) -> Problem:
    assert problem.train.targets is not None and problem.test.targets is not None
    edges = problem.train.targets[:, 0].quantile(torch.tensor([0.25, 0.5, 0.75]))
    train, test = (
        replace(part, targets=torch.bucketize(part.targets[:, 0], edges))  # type: ignore[index]
        for part in (problem.train, problem.test)
    )
    return Problem(problem.name, "classification", train, test, 4)


def problem_of(run: Run, root: str | None) -> tuple[Samples, Samples, int]:
    """Training samples with wrong labels among them, test samples, and the number of classes."""
    problem = prepared(RunSpec(data=DataSpec.from_dict(run.data)), root)[0]
    if problem.task == "regression":
        problem = _in_quartiles(problem)
    chosen = torch.randperm(len(problem.train), generator=make_generator(run.seed, "training subset"))[: run.samples]
    train, test = problem.train.subset(chosen), problem.test.subset(torch.arange(min(run.test, len(problem.test))))
    assert train.targets is not None
    wrong = inject_label_noise(train.targets, run.noise, problem.n_outputs, make_generator(run.seed, "label noise"))
    return replace(train, targets=wrong), test, problem.n_outputs


def _network(run: Run, samples: Samples, classes: int) -> nn.Module:
    spec = NetworkSpec.from_dict(run.network)
    options: dict[str, Any] = {**spec.options} | ({"dropout": run.way.dropout} if run.way.dropout else {})
    shape, weights = tuple(samples.inputs.shape[1:]), make_generator(run.seed, "initial weights")
    return build_network(spec.name, input_shape=shape, n_outputs=classes, generator=weights, **options)


def _settings(run: Run) -> TrainingSpec:
    settings = TrainingSpec.from_dict(run.training)
    return settings if run.way.loss is None else replace(settings, loss=LossSpec(**run.way.loss))


def _split(run: Run, samples: Samples) -> tuple[Samples, Samples | None]:
    """Samples that are trained on, and those that choose the epoch."""
    out = round(run.way.held_out * len(samples))
    if not out:
        return samples, None
    order = torch.randperm(len(samples), generator=make_generator(run.seed, "split"))
    return samples.subset(order[out:]), samples.subset(order[:out])


def _kept(accuracies: Sequence[float], held_out: Sequence[float]) -> float:
    """Test accuracy of the last epochs, or that of the first epoch at which the held-out samples fare best."""
    if held_out:
        return accuracies[max(range(len(held_out)), key=held_out.__getitem__)]
    return sum(accuracies[-LAST:]) / LAST if len(accuracies) >= LAST else (*accuracies, 0.0)[0]


def trained(run: Run, root: str | None) -> dict[str, Any]:
    """Train, and return what is compared."""
    samples, test, classes = problem_of(run, root)
    network = _network(run, samples, classes)
    part, tenth = _split(run, samples)
    held_out: list[float] = []

    def on_epoch(network: nn.Module, row: dict[str, Any]) -> None:
        if tenth is not None:
            held_out.append(evaluate(network, tenth)["accuracy"])

    penalties: list[Penalty] = []
    if run.way.penalty is not None:
        penalties = [make_penalty(run.way.penalty["name"], run.way.penalty.get("options", {}))]
    start = time.process_time()
    result = train(network, part, _settings(run), seed=run.seed, test=test, penalties=penalties, on_epoch=on_epoch)
    seconds = time.process_time() - start
    accuracies = [float(row["test_accuracy"]) for row in result.history]
    found: dict[str, Any] = {
        "scenario": run.scenario, "noise": run.noise, "seed": run.seed, "way": run.way.name,
        "status": result.status, "cpu_seconds": round(seconds, 2), "best": max(accuracies, default=0.0),
        "final": _kept(accuracies, held_out), "accuracies": [round(value, 4) for value in accuracies],
    }  # fmt: skip
    rules = [penalty.automatic for penalty in penalties if isinstance(penalty.automatic, AutomaticStrength)]
    looks = [look for rule in rules for look in rule.history]
    return found | ({"looks": [[float(f"{value:.3g}") for value in look] for look in looks]} if looks else {})
