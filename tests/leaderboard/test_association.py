"""Associations with the gap against fits that really leave training configurations out."""

from __future__ import annotations

from typing import Any

import numpy
import pandas
import pytest

from gapscope.leaderboard.association import (
    HyperparameterSmoother,
    PartialAssociations,
    cross_validated_line,
    normal_scores,
)
from gapscope.statistics.intervals import cluster_bootstrap_weights, configuration_ids, permutations

NONE = numpy.empty((0, 30), dtype=int)


@pytest.fixture(scope="module")
def table() -> pandas.DataFrame:
    rng = numpy.random.default_rng(0)
    n = numpy.arange(48)
    return pandas.DataFrame(
        {"width": n % 2, "depth": n // 2 % 3, "rate": n // 6 % 4, "noise": rng.normal(size=48)}
    ).assign(y=lambda t: t["width"] * t["depth"] + 0.5 * t["rate"] + 0.3 * t["noise"])


def test_loo_residuals_are_those_of_refitting_without_the_configuration(
    table: pandas.DataFrame,
) -> None:
    settings = ["width", "depth", "rate"]
    clusters, y = configuration_ids(table, settings), table["y"].to_numpy()
    smoother = HyperparameterSmoother(table, settings, clusters)
    kernel = numpy.prod([1 + 0.05 * own for own in smoother._kernels], axis=0)
    kernel, ridge = kernel / kernel.diagonal().mean(), 0.001 / 96 * len(table)
    expected = numpy.empty(len(table))
    for number in set(clusters):
        out, rest = clusters == number, clusters != number
        weights = numpy.linalg.solve(
            kernel[numpy.ix_(rest, rest)] + ridge * numpy.eye(rest.sum()), y[rest]
        )
        expected[out] = y[out] - kernel[numpy.ix_(out, rest)] @ weights
    assert smoother._candidates[0].held_out @ y == pytest.approx(expected, abs=1e-8)
    for own in settings:  # a function of hyperparameters leaves little
        scores = normal_scores(table[own].to_numpy(dtype=float))
        assert (smoother.residuals(scores).held_out @ scores).std() < 0.02 * scores.std()
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


def grouped(seed: int = 0, n: int = 90) -> pandas.DataFrame:
    rng = numpy.random.default_rng(seed)
    rows, noise = numpy.arange(n), rng.normal(size=n)
    table = pandas.DataFrame({"width": rows % 3, "depth": rows // 3 % 2})
    gap = 2.0 * table["width"] + table["depth"] + noise
    return table.assign(
        gap=gap, noise=noise, other=rng.normal(size=n), copy=table["width"] * 5.0 + table["depth"]
    )


def associated(table: pandas.DataFrame, measure: pandas.Series, settings: list[str]) -> Any:
    clusters = configuration_ids(table, settings)
    orders, weights = (
        numpy.array(list(permutations(clusters, 100, 0))),
        cluster_bootstrap_weights(clusters, 50, 0),
    )
    return PartialAssociations(table, "gap", settings, clusters, orders, weights).of(
        measure.to_numpy(dtype=float)
    )


def test_it_is_the_correlation_of_what_group_means_leave() -> None:
    table = grouped(n=180)
    (score, permuted), _ = associated(
        table, table["noise"] + 3 * table["width"], ["width", "depth"]
    )
    assert score.value == pytest.approx(1, abs=0.12)
    assert (numpy.abs(permuted) >= abs(score.value)).mean() < 0.05
    noisy = table.assign(norm=table["noise"] + 3 * table["width"] + 2 * table["other"])
    configuration = (noisy["width"] * 2 + noisy["depth"]).to_numpy()
    left = [
        noisy[name].to_numpy()
        - numpy.array(
            [noisy[name].to_numpy()[configuration == own].mean() for own in configuration]
        )
        for name in ("norm", "gap")
    ]
    # six configurations of thirty seeds each: one is predicted from the others alone, so that main effects are fitted
    value = associated(noisy, noisy["norm"], ["width", "depth"])[0][0].value
    assert value == pytest.approx(float(numpy.corrcoef(left)[0, 1]), abs=0.12)


def test_a_copy_has_nothing_left_and_increasing_functions_do_not_matter() -> None:
    table = grouped()
    assert associated(table, table["copy"], ["width", "depth"])[1] > 0.9
    norm = table["noise"] + table["other"]
    plain, negated, grown = (
        associated(table, each, ["width"])[0][0].value
        for each in (norm, -norm, norm.map(numpy.exp))
    )
    assert negated == pytest.approx(-plain) and grown == pytest.approx(plain)


def test_each_configuration_is_predicted_by_the_line_of_the_others() -> None:
    rng = numpy.random.default_rng(0)
    x, clusters = rng.normal(size=30), numpy.arange(30) // 3
    y = x + rng.normal(size=30)
    errors, plain = numpy.empty(30), numpy.empty(30)
    for number in range(10):
        out, rest = clusters == number, clusters != number
        slope, intercept = numpy.polyfit(x[rest], y[rest], 1)
        errors[out], plain[out] = y[out] - slope * x[out] - intercept, y[out] - y[rest].mean()
    weights = cluster_bootstrap_weights(clusters, 2000, 0)
    r_squared, mae, _ = cross_validated_line(x, y, clusters, NONE, weights)
    assert r_squared.value == pytest.approx(1 - (errors**2).sum() / (plain**2).sum())
    assert mae.value == pytest.approx(numpy.abs(errors).mean())
    assert r_squared.low < r_squared.value < r_squared.high and mae.low < mae.value < mae.high
    constant, _, _ = cross_validated_line(numpy.ones(30), y, clusters, NONE, weights)
    assert constant.value == pytest.approx(0, abs=1e-9)


def test_permutations_are_lines_through_permuted_gaps() -> None:
    rng = numpy.random.default_rng(1)
    x, y, orders = (
        rng.normal(size=30),
        rng.normal(size=30),
        numpy.array([rng.permutation(30) for _ in range(3)]),
    )
    alone, once = numpy.arange(30), numpy.ones((1, 30))
    _, _, permuted = cross_validated_line(x, y, alone, orders, once)
    assert permuted == pytest.approx(
        [cross_validated_line(x, y[order], alone, NONE, once)[0].value for order in orders]
    )
