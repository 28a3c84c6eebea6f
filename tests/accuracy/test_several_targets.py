"""R² of several regression targets is one number in all verbs: the mean over targets, whatever their units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score
from torch import Tensor, nn

import gapscope as gs
from gapscope.accuracy.scores import scales_of, scores_of_predictions
from gapscope.base.budget import CpuBudget
from gapscope.checks.split_trainings import Splits
from gapscope.checks.trainers import FunctionTrainer
from gapscope.results.estimate import IntervalEstimate
from gapscope.statistics.baselines import most_frequent_class, scored_row
from gapscope.statistics.intervals import r_squared_interval, r_squared_scales

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(60, 4)).astype("float32")


def targets(scale: float) -> np.ndarray:
    random = np.random.default_rng(1)
    known = 2 * X[:, 0] + 0.2 * random.normal(size=60)
    return np.stack([known, scale * random.normal(size=60)], 1).astype("float32")


def least_squares(x: Tensor, y: Tensor) -> nn.Module:
    network = nn.Linear(4, 2)
    inputs = torch.cat([x, torch.ones(len(x), 1)], 1).double()
    solution = torch.linalg.lstsq(inputs, y.double()).solution.float()
    with torch.no_grad():
        network.weight.copy_(solution[:4].T)
        network.bias.copy_(solution[4])
    return network


def validated(y: np.ndarray) -> Any:
    network = least_squares(torch.from_numpy(X), torch.from_numpy(y))
    return gs.validated_accuracy(network, (X[:30], y[:30]), (X[30:], y[30:]))


def checked(y: np.ndarray) -> Any:
    account = gs.check(LinearRegression().fit(X, y), (X, y)).account
    assert account is not None
    return account.expected


def forecast(y: np.ndarray) -> Any:
    score = gs.forecast_accuracy(None, (X, y)).score
    return IntervalEstimate(score, np.nan, np.nan)  # regression has no interval


VERBS: dict[str, Callable[[np.ndarray], Any]] = {
    "forecast": forecast,
    "inputs": lambda y: gs.out_of_sample(None, (X, y)).estimate,
    "estimator": lambda y: gs.out_of_sample(LinearRegression(), (X, y)).estimate,
    "network": lambda y: gs.out_of_sample(least_squares, (X, y), cost=2).estimate,
    "curve": lambda y: gs.learning_curve(LinearRegression(), (X, y)).estimate,
    "curve of networks": lambda y: gs.learning_curve(least_squares, (X, y)).estimate,
    "validated": lambda y: validated(y).estimate,
    "check": checked,
}


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_it_does_not_depend_on_the_units(verb: Callable[[np.ndarray], Any]) -> None:
    small, large = verb(targets(1)), verb(targets(1000))
    ends = small.value, small.low, small.high
    assert (large.value, large.low, large.high) == pytest.approx(ends, abs=2e-3, nan_ok=True)
    # half of 0.99 for the one, about 0 for the other
    assert 0.2 < small.value < 0.65


def test_it_is_that_of_scikit_learn() -> None:
    y = targets(100).astype(float)
    predicted = y + RANDOM.normal(size=y.shape) * y.std(0) * [0.5, 0.8]
    expected = r2_score(y, predicted)
    assert r_squared_interval(predicted, y)[0] == pytest.approx(expected)
    samples = gs.Samples(torch.from_numpy(X), torch.from_numpy(y))
    scores = scores_of_predictions(torch.from_numpy(predicted), samples, scales_of(samples))
    assert scores.mean() == pytest.approx(expected)
    held = gs.out_of_sample(LinearRegression(), (X, y))
    assert held.score == pytest.approx(r2_score(y, held.predictions))
    run = gs.learning_curve(LinearRegression(), (X, y)).trainings[0]
    assert run.training_score > 0
    # against the leave-one-out mean: that of all others predicts with R^2 0
    assert most_frequent_class(torch.from_numpy(y)).score == pytest.approx(0, abs=1e-9)
    row = scored_row("", "", torch.from_numpy(predicted), torch.from_numpy(y))
    assert 1 - row.score == pytest.approx((1 - expected) * (59 / 60) ** 2)


def test_its_interval_is_that_of_a_bootstrap() -> None:
    random = np.random.default_rng(0)
    y = random.normal(size=(400, 2)) * [1, 50]
    predicted = y + random.normal(size=y.shape) * [0.5, 40]
    value, low, high = r_squared_interval(predicted, y)
    rows = random.integers(0, 400, (400, 400))
    resampled = [r2_score(y[part], predicted[part]) for part in rows]
    assert (high - low) / 2 == pytest.approx(1.645 * np.std(resampled), rel=0.15)
    assert low < value < high


def test_trials_score_it_alike() -> None:
    y = targets(100)
    samples = gs.Samples(torch.from_numpy(X), torch.from_numpy(y))
    trainer = FunctionTrainer(least_squares, None)
    splits = Splits(trainer, samples, {}, torch.ones(60), 0, CpuBudget(None), 9.0)
    scored = splits.scores(None, 0)
    rows = ~scored.isnan()
    network = least_squares(samples.inputs[~rows], samples.y[~rows])
    residuals = (network(samples.inputs).detach().numpy() - y)[rows.numpy()]
    expected = 1 - (residuals**2 / y.var(0)).mean()
    assert float(scored[rows].mean()) == pytest.approx(expected, abs=1e-4)


def test_constant_targets_are_not_counted_and_named() -> None:
    y = np.column_stack([targets(1)[:, 0], np.full(60, 0.1)])
    assert np.isinf(r_squared_scales(y)).tolist() == [False, True]
    alone = gs.out_of_sample(LinearRegression(), (X, y[:, :1]))
    for verb in (gs.out_of_sample, gs.learning_curve):
        result = verb(LinearRegression(), (X, y))
        assert any("target 1" in note for note in result.notes)
    assert gs.out_of_sample(LinearRegression(), (X, y)).score == pytest.approx(alone.score)
    result = gs.forecast_accuracy(None, (X, y))
    assert any("target 1" in note for note in result.notes)
    single = gs.forecast_accuracy(None, (X, y[:, :1]))
    assert result.score == pytest.approx(single.score, abs=0.01)
