"""Networks of halves with a refitted last layer: when these are not the networks of a training function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import gapscope as gs
from gapscope.accuracy.continued_runs import describe_undertrained
from gapscope.accuracy.extrapolation import SizedScore


def scores(mean: float, n: int = 600) -> np.ndarray:
    """Scores of n samples, correct ones first."""
    return (np.arange(n) < round(mean * n)).astype(float)


@pytest.mark.parametrize(
    ("own", "outputs", "continued", "steps", "is_undertrained"),
    [
        (0.900, 0.857, 0.948, 1.0, True),  # a network that has not finished learning
        (0.970, 0.890, 0.950, 1.0, True),  # its training score is above that of the refitted layer
        (0.630, 0.403, 0.480, 1.0, True),
        (1.000, 0.938, 0.940, 1.0, False),
        (
            1.000,
            0.620,
            0.660,
            1.0,
            False,
        ),  # memorized label noise, which the refitted layer has not
        (0.990, 0.980, 0.995, 1.0, False),  # less than the smallest gain
        (0.840, 0.800, 0.940, 0.25, False),  # a quarter of the steps
        (0.600, 0.580, 0.940, 0.25, True),
    ],
)
def test_under_trained_networks_are_those_that_a_refitted_layer_helps(
    own: float, outputs: float, continued: float, steps: float, is_undertrained: bool
) -> None:
    fit = SizedScore(300, own, own * (1 - own) / 600)
    reason = describe_undertrained(fit, scores(continued), scores(outputs), steps)
    assert bool(reason) == is_undertrained
    if reason:
        assert all(f"{value:.3f}" in reason for value in (own, outputs, continued))


def test_a_gain_of_few_samples_is_no_evidence() -> None:
    fit = SizedScore(20, 1.0, 0.0)
    assert not describe_undertrained(fit, scores(1.0, 40), scores(0.95, 40), 1.0)


def train_for(steps: int) -> Any:
    def train_fn(x: Tensor, y: Tensor) -> nn.Module:
        network = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        optimizer = torch.optim.SGD(network.parameters(), 0.3)
        for _ in range(steps):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x), y).backward()
            optimizer.step()
        return network

    return train_fn


def test_networks_that_a_few_more_steps_improve_have_their_own_score() -> None:
    inputs, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x, y = torch.tensor(inputs[order] / 16).float(), torch.tensor(labels[order])
    train, new = (x[:400], y[:400]), (x[400:], y[400:])
    few = train_for(45)
    curve = gs.learning_curve(few, train)
    own = [run.training_score for run in curve.trainings[:2]]
    truth = float((few(*train)(new[0]).argmax(1) == new[1]).double().mean())
    # their training scores are near that of the refitted layer, which alone would show nothing
    assert curve.trainings[0].score - sum(own) / 2 < 0.05
    assert curve.design == "half and quarter" and curve.low <= truth <= curve.high
    held_out = gs.out_of_sample(few, train)
    assert held_out.method == "two halves" and "cost=5" in held_out.notes[-1]
