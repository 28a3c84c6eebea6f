"""The advice on a learning rate is read from the level and the whole course of the losses."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import gapscope as gs
from gapscope.base.samples import Samples
from gapscope.results.outcomes import Finding
from gapscope.statistics.baselines import LooRow
from gapscope.training.loss_course import FLAT, LONGER, read_course
from gapscope.training.monitor import Monitor
from gapscope.training.run_checks import RunState, convergence

# of ten classes with equal frequencies
CHANCE = math.log(10)


def advice(losses: list[float], spread: float = 1.0) -> str:
    return read_course(losses, CHANCE, CHANCE, spread).fixes[0]


@pytest.mark.parametrize(
    ("losses", "spread"),
    [
        ([2.3286, 2.3283, 2.3280, 2.3278, 2.3276, 2.3274], 0.1),
        # the losses of another kind: a sum over the samples
        ([901.0, 899.0, 897.0, 895.0, 893.0, 891.0], 0.1),
        # dropout
        ([2.42, 2.38, 2.41, 2.36, 2.40, 2.37], 0.1),
        # far from zero at the beginning, and slowly falling at its end
        ([2.5, 2.4, 2.35, 2.3, 2.28, 2.27], 0.3),
        # weights that were initialized with zeros
        ([2.3026] * 6, 0.0),
    ],
)
def test_a_loss_that_has_hardly_fallen_needs_larger_steps(
    losses: list[float], spread: float
) -> None:
    assert advice(losses, spread) == "learning rate x 10"


@pytest.mark.parametrize(
    ("losses", "spread"),
    [
        # all units are dead, and the constant they leave is learned
        ([1153.0, 300.0, 60.0, 12.0, 8.0, 6.9], 0.0),
        ([1153.0, 2.31, 2.304, 2.303, 2.3026, 2.3026], 0.0),
        # above chance, then at it, with outputs that vary
        ([5.8, 2.6, 2.33, 2.31, 2.31, 2.3], 3.5),
        ([2.31, 2.28, 2.6, 2.27, 2.5, 2.3], 1.1),
        ([2.31, 2.4, 2.6, 3.0, 3.6, 4.2], 1.1),
        # ended in the third epoch
        ([4.0, 900.0], 1e6),
        ([1.9, 0.8, 2.9, 0.7, 4.0, 1.0], 14.0),
    ],
)
def test_a_loss_that_was_above_chance_needs_smaller_steps(
    losses: list[float], spread: float
) -> None:
    assert advice(losses, spread) == "learning rate / 10"


def test_a_loss_that_falls_or_stops_below_chance_keeps_its_advice() -> None:
    assert read_course([2.2, 2.0, 1.8, 1.6, 1.4, 1.2], CHANCE, CHANCE, 1.0) is LONGER
    assert read_course([2.2, 1.4, 1.2, 1.2, 1.2, 1.2], CHANCE, CHANCE, 1.0) is FLAT
    # raw columns: far above chance, and falling evenly
    assert read_course([60.0, 50.0, 42.0, 35.0, 29.0, 24.0], CHANCE, CHANCE, 35.0) is LONGER


def test_without_losses_equal_outputs_are_named() -> None:
    dead = read_course([], CHANCE, CHANCE, 0.0)
    assert dead.fixes[0] == "learning rate / 10" and "same outputs" in dead.reason
    assert "history=" in dead.action and "history=" in read_course([], CHANCE, CHANCE, 1.0).action


@pytest.mark.parametrize(("rate", "first"), [(1e-4, "raise"), (100.0, "lower")])
def test_a_finished_and_a_running_training_are_told_the_same(rate: float, first: str) -> None:
    g = torch.Generator().manual_seed(0)
    y = torch.arange(120) % 3
    x = 3 * nn.functional.one_hot(y, 3).float() + 0.3 * torch.randn(120, 3, generator=g)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 3))
    monitor = Monitor((x, y), checks=["GS302"], max_time_fraction=None)
    spec = gs.TrainingSpec(learning_rate=rate, epochs=12)
    history = gs.train(network, (x, y), spec, on_epoch=monitor).history
    losses = [row["train_loss"] for row in history]
    row = LooRow("RBF ridge", "inputs", 0.99, torch.zeros(120, 3))
    state = RunState(network, Samples(x, y), losses=losses, is_over=True, kernel=lambda: row)
    after = convergence(state)
    assert isinstance(after, Finding) and after.action.startswith(first)
    assert monitor.findings and monitor.findings[0].action.startswith(first)
