"""One training, with a penalty of a fixed strength or of one that sets itself."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from gapscope.base.random_streams import stream
from gapscope.base.samples import Samples
from gapscope.base.specs import DataSpec, NetworkSpec, Spec, TrainingSpec
from gapscope.data import Problem
from gapscope.data.corruptions import label_noise
from gapscope.networks import build
from gapscope.penalties.gradient_similarity import GradientSimilarityPenalty
from gapscope.pools.from_spec import prepared
from gapscope.training.loop import train

AUTOMATIC = "auto"
LAST = 5  # epochs whose test accuracy is averaged: single ones jump by some points


@dataclass(frozen=True)
class Run:
    """What is trained.

    Attributes:
        scenario: Name of the data and the network.
        data: Settings of the data, without noise.
        network: The network.
        training: Its training, without penalties.
        samples: Training samples.
        test: Test samples.
        noise: Share of wrong labels, alike among all classes.
        seed: Seed of samples, noise, weights and order.
        strength: Of the gradient similarity penalty; 0 for none, "auto".
    """

    scenario: str
    data: Mapping[str, Any]
    network: Mapping[str, Any]
    training: Mapping[str, Any]
    samples: int
    test: int
    noise: float
    seed: int
    strength: float | str

    @property
    def name(self) -> str:
        """What tells it from the others."""
        scenario = self.scenario.replace(",", "").replace(" ", "_")
        return f"{scenario}-{self.noise:g}-{self.seed}-{self.strength}"


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
    problem = prepared(Spec(data=DataSpec.from_dict(run.data)), root)[0]
    if problem.task == "regression":
        problem = _in_quartiles(problem)
    chosen = torch.randperm(len(problem.train), generator=stream(run.seed, "training subset"))[: run.samples]
    train, test = problem.train.subset(chosen), problem.test.subset(torch.arange(min(run.test, len(problem.test))))
    assert train.targets is not None
    wrong = label_noise(train.targets, run.noise, problem.n_outputs, stream(run.seed, "label noise"))
    return replace(train, targets=wrong), test, problem.n_outputs


def trained(run: Run, root: str | None) -> dict[str, Any]:
    """Train, and return what is compared."""
    samples, test, classes = problem_of(run, root)
    spec = NetworkSpec.from_dict(run.network)
    network = build(
        spec.name, input_shape=tuple(samples.inputs.shape[1:]), n_outputs=classes,
        generator=stream(run.seed, "initial weights"), **spec.options,
    )  # fmt: skip
    penalty = None if run.strength == 0 else GradientSimilarityPenalty(run.strength)  # type: ignore[arg-type]
    start = time.process_time()
    result = train(
        network, samples, TrainingSpec.from_dict(run.training), seed=run.seed, test=test,
        penalties=[] if penalty is None else [penalty],
    )  # fmt: skip
    seconds = time.process_time() - start
    accuracies = [float(row["test_accuracy"]) for row in result.history]
    found: dict[str, Any] = {
        "scenario": run.scenario, "noise": run.noise, "seed": run.seed, "strength": str(run.strength),
        "status": result.status, "cpu_seconds": round(seconds, 2), "best": max(accuracies, default=0.0),
        "final": sum(accuracies[-LAST:]) / LAST if len(accuracies) >= LAST else (accuracies or [0.0])[-1],
        "accuracies": [round(value, 4) for value in accuracies],
    }  # fmt: skip
    if penalty is not None and penalty.automatic is not None:
        found["strengths"] = [float(f"{look[3]:.3g}") for look in penalty.automatic.history]
    return found
