"""Resamples and permutations of networks and of whole clusters; intervals as percentiles."""

from __future__ import annotations

from typing import Any

import numpy
import pandas
import pytest
from scipy import optimize, stats

from gapscope.statistics.intervals import (
    bootstrap_weights,
    cluster_bootstrap_weights,
    configuration_ids,
    members,
    paired_difference_interval,
    percentile_interval,
    permutations,
    wilson_interval,
)


def test_weights_are_resamples_with_replacement() -> None:
    weights = bootstrap_weights(5, 20_000, 0)
    assert (
        weights.shape == (20_000, 5)
        and (weights.sum(1) == 5).all()
        and (weights == weights.round()).all()
    )
    assert weights.mean(0) == pytest.approx(numpy.ones(5), abs=0.03)
    assert weights.var(0) == pytest.approx(numpy.full(5, 0.8), abs=0.05)  # n p (1 - p)
    assert (bootstrap_weights(5, 3, 1) == bootstrap_weights(5, 3, 1)).all()


def test_the_interval_of_a_mean_is_scipys() -> None:
    values = numpy.random.default_rng(0).normal(size=40)
    means = bootstrap_weights(40, 20_000, 1) @ values / 40
    theirs = stats.bootstrap(
        (values,), numpy.mean, n_resamples=20_000, method="percentile", rng=2
    ).confidence_interval
    assert percentile_interval(means, 0.95) == pytest.approx((theirs.low, theirs.high), abs=0.02)


def test_values_that_are_not_finite_are_excluded() -> None:
    assert percentile_interval([numpy.nan, 1.0, numpy.inf], 0.9) == (1.0, 1.0)
    assert numpy.isnan(percentile_interval([numpy.nan], 0.9)).all()


def test_networks_of_one_configuration_differ_in_nothing_but_the_seed() -> None:
    table = pandas.DataFrame(
        {"width": [8, 16, 8, 8], "penalties": [[], [], [], [{"a": 1}]], "seed": [0, 0, 1, 0]}
    )
    assert configuration_ids(table, ["width", "penalties"]).tolist() == [0, 1, 0, 2]
    assert configuration_ids(table, []).tolist() == [0, 1, 2, 3]


def test_whole_clusters_change_places_with_those_of_their_size() -> None:
    clusters = numpy.array([0, 1, 0, 2, 2, 3, 3])
    of_rows, seen = members(clusters), set()
    for order in permutations(clusters, 200, 0):
        assert sorted(order) == list(range(7)) and order[1] == 1
        sources = [set(clusters[order[rows]]) for rows in of_rows]
        assert all(len(source) == 1 for source in sources)
        seen.add(tuple(order))
    assert len(seen) == 6 * 8  # 3! orders of the pairs, two orders inside each


def test_rows_of_a_cluster_are_sampled_together() -> None:
    weights = cluster_bootstrap_weights(numpy.array([0, 0, 1, 2]), 300, 0)
    assert (weights[:, 0] == weights[:, 1]).all() and set(weights[:, [0, 2, 3]].sum(1)) == {3.0}
    assert abs(weights.mean() - 1) < 0.1


@pytest.mark.parametrize(("correct", "n"), [(0, 20), (3, 20), (17, 20), (20, 20), (40, 300)])
def test_wilsons_interval_is_that_of_scipy(correct: int, n: int) -> None:
    theirs = stats.binomtest(correct, n).proportion_ci(0.9, method="wilson")
    assert wilson_interval(correct / n, n) == pytest.approx((theirs.low, theirs.high), abs=1e-9)


@pytest.mark.parametrize(
    ("b", "c", "n"), [(0, 0, 20), (12, 2, 50), (1, 0, 44), (3, 9, 32), (0, 5, 5), (10, 0, 10)]
)
def test_the_paired_interval_inverts_the_score_test(b: int, c: int, n: int) -> None:
    """Oracle: the score test with the nuisance fraction found by numerical maximum likelihood."""

    def statistic(difference: float) -> float:
        def minus_log_likelihood(second: float) -> float:
            first = second + difference
            agree = 1 - first - second
            parts = [(b, first), (c, second), (n - b - c, agree)]
            return -sum(
                count * numpy.log(max(fraction, 1e-300)) for count, fraction in parts if count
            )

        bounds = (max(0.0, -difference), (1 - difference) / 2)
        best: Any = optimize.minimize_scalar(
            minus_log_likelihood, bounds=bounds, method="bounded", options={"xatol": 1e-12}
        )
        second = best.x
        return abs(b - c - n * difference) / numpy.sqrt(
            n * (2 * second + difference - difference**2)
        )

    low, high = paired_difference_interval(b, c, n)
    for end in (low, high):
        assert abs(end) == 1 or statistic(end) == pytest.approx(1.6449, abs=2e-3)
    assert low <= (b - c) / n <= high and low < high
    assert paired_difference_interval(c, b, n) == pytest.approx((-high, -low), abs=1e-9)


def test_the_paired_interval_covers() -> None:
    random = numpy.random.default_rng(0)
    for only_first, only_second, n in ((0.05, 0.02, 20), (0.3, 0.1, 20), (0.02, 0.0, 40)):
        counts = random.multinomial(
            n, [only_first, only_second, 1 - only_first - only_second], size=400
        )
        ends = numpy.array([paired_difference_interval(row[0], row[1], n) for row in counts])
        truth = only_first - only_second
        assert ((ends[:, 0] <= truth) & (truth <= ends[:, 1])).mean() >= 0.86


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_the_interval_of_all_or_none_ends_at_the_fraction(level: float) -> None:
    for n in range(1, 2000):
        low, high = wilson_interval(0.0, n, level)
        assert low == 0 < high < 1
        low, high = wilson_interval(1.0, n, level)
        assert 0 < low < 1 == high
        fraction = (n - 1) / n
        low, high = wilson_interval(fraction, n, level)
        assert 0 <= low <= fraction <= high <= 1
        if n % 50:
            continue
        theirs = stats.binomtest(n - 1, n).proportion_ci(level, "wilson")
        assert (low, high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
