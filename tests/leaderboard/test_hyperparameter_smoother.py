"""Residuals given hyperparameters against fits that really leave training configurations out."""

from __future__ import annotations

import numpy
import pandas
import pytest

from gapscope.leaderboard.association import HyperparameterSmoother, normal_scores
from gapscope.statistics.intervals import configuration_ids


@pytest.fixture(scope="module")
def table() -> pandas.DataFrame:
    rng = numpy.random.default_rng(0)
    n = numpy.arange(48)
    return pandas.DataFrame(
        {"width": n % 2, "depth": n // 2 % 3, "rate": n // 6 % 4, "noise": rng.normal(size=48)}
    ).assign(y=lambda t: t["width"] * t["depth"] + 0.5 * t["rate"] + 0.3 * t["noise"])


def test_left_out_residuals_are_those_of_refitting_without_the_recipe(table: pandas.DataFrame) -> None:
    settings = ["width", "depth", "rate"]
    clusters, y = configuration_ids(table, settings), table["y"].to_numpy()
    smoother = HyperparameterSmoother(table, settings, clusters)
    kernel = numpy.prod([1 + 0.05 * own for own in smoother._kernels], axis=0)
    kernel, ridge = kernel / kernel.diagonal().mean(), 0.001 / 96 * len(table)
    expected = numpy.empty(len(table))
    for number in set(clusters):
        out, rest = clusters == number, clusters != number
        weights = numpy.linalg.solve(kernel[numpy.ix_(rest, rest)] + ridge * numpy.eye(rest.sum()), y[rest])
        expected[out] = y[out] - kernel[numpy.ix_(out, rest)] @ weights
    assert smoother._candidates[0].held_out @ y == pytest.approx(expected, abs=1e-8)


def test_a_function_of_hyperparameters_leaves_little(table: pandas.DataFrame) -> None:
    settings = ["width", "depth", "rate"]
    smoother = HyperparameterSmoother(table, settings, configuration_ids(table, settings))
    for own in ("width", "depth", "rate"):
        scores = normal_scores(table[own].to_numpy(dtype=float))
        left = smoother.residuals(scores).held_out @ scores
        assert left.std() < 0.02 * scores.std()
    noise = normal_scores(table["noise"].to_numpy())
    assert (smoother.residuals(noise).held_out @ noise).std() > 0.8 * noise.std()


def test_many_levels_are_smoothed_by_rank_and_none_fits_the_mean(table: pandas.DataFrame) -> None:
    varied = table.assign(rate=numpy.random.default_rng(1).uniform(size=48))
    smoother = HyperparameterSmoother(varied, ["rate"], numpy.arange(48))
    scores = normal_scores(varied["rate"].to_numpy())
    assert (smoother.residuals(scores).held_out @ scores).std() < 0.1 * scores.std()
    plain = HyperparameterSmoother(table, [], numpy.arange(48))
    y = table["y"].to_numpy()
    others = numpy.array([y[i] - numpy.delete(y, i).mean() for i in range(48)])
    assert plain.residuals(y).held_out @ y == pytest.approx(others, abs=1e-6)


def test_normal_scores_do_not_see_increasing_functions() -> None:
    values = numpy.array([3.0, 1.0, 2.0, 2.0])
    assert normal_scores(values) == pytest.approx(normal_scores(numpy.exp(5 * values)))
