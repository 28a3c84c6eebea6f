"""Intervals against scipy, and clusters against doing it by hand."""

from __future__ import annotations

import math

import numpy as np
import pandas
import pytest
from scipy import stats

from gapscope.statistics.correlations import correlations
from gapscope_studies.kit.statistics import (
    bootstrap,
    bootstrap_both,
    log_log,
    mean,
    t_interval,
    widening,
)
from support.tables import rows_of

VALUES = np.random.default_rng(3).normal(2.0, 1.0, 40)


def test_the_interval_of_the_mean_is_scipys() -> None:
    result = mean(VALUES.tolist())
    expected = stats.ttest_1samp(VALUES, 0.0).confidence_interval(0.95)
    assert (result.low, result.high) == (pytest.approx(expected.low), pytest.approx(expected.high))
    assert (result.value, result.units) == (pytest.approx(VALUES.mean()), 40)


def test_clusters_are_averaged_first() -> None:
    clusters = [i // 10 for i in range(40)]
    assert mean(VALUES.tolist(), clusters) == mean(
        [VALUES[10 * i : 10 * i + 10].mean() for i in range(4)]
    )


@pytest.mark.parametrize("values", [[], [1.0], [1.0, math.inf]])
def test_without_two_finite_values_there_is_no_interval(values: list[float]) -> None:
    assert t_interval(values) == (-math.inf, math.inf)
    assert (mean(values).low, mean(values).units) == (-math.inf, len(values))


def test_the_bootstrap_is_that_of_scipy() -> None:
    result = bootstrap(lambda rows: float(np.median(VALUES[rows])), 40)
    expected = stats.bootstrap(
        (VALUES,), np.median, method="percentile", n_resamples=4000, rng=1
    ).confidence_interval
    assert (result.low, result.high) == (
        pytest.approx(expected.low, abs=0.07),
        pytest.approx(expected.high, abs=0.07),
    )


def test_rows_of_a_cluster_stay_together() -> None:
    picks: list[np.ndarray] = []

    def average(rows: np.ndarray) -> float:
        picks.append(rows)
        return float(VALUES[rows].mean())

    result = bootstrap(average, 6, ["a", "b", "a", "b", "c", "c"], draws=50)
    assert result.units == 3
    for rows in picks:
        count = np.bincount(rows, minlength=6)
        assert (count[0], count[1], count[4]) == (count[2], count[3], count[5])
    assert bootstrap(lambda rows: 1.0, 4, ["a"] * 4).low == -math.inf
    with pytest.raises(ValueError, match="here 3; got 2"):
        bootstrap(lambda rows: 1.0, 3, ["a", "b"])


def test_lines_in_logarithms_are_numpys_and_intervals_those_of_the_library() -> None:
    rng = np.random.default_rng(1)
    x = np.exp(rng.normal(size=30))
    y = x**0.5 * np.exp(rng.normal(0, 0.2, 30))
    correlation, slope = log_log([*x, 1.0, -1.0], [*y, math.nan, 2.0])
    assert slope.value == pytest.approx(np.polyfit(np.log(x), np.log(y), 1)[0])
    table = pandas.DataFrame({"a": np.log(x), "b": np.log(y)})
    row = rows_of(correlations(table, ["a"], target="b", baseline=None))["a"]
    assert correlation.units == 30
    for ours, theirs in ((correlation.value, "pearson"), (correlation.low, "pearson_low")):
        assert ours == pytest.approx(row[theirs])
    by_cluster = log_log(x.tolist(), y.tolist(), [i // 10 for i in range(30)])
    assert by_cluster[0].units == 3 and by_cluster[1].value == pytest.approx(slope.value)
    assert math.isnan(log_log([1.0, 2.0], [1.0, 2.0])[1].value)


def test_both_ways_covers_rows_and_repeats() -> None:
    rng = np.random.default_rng(0)
    rows, repeats = rng.normal(0, 2.0, (30, 1)), rng.normal(0, 1.0, (1, 10))
    result = bootstrap_both(lambda means: float(means.mean()), rows + repeats)
    spread = math.hypot(rows.std() / math.sqrt(30), repeats.std() / math.sqrt(10))
    assert result.high - result.low == pytest.approx(2 * 1.96 * spread, rel=0.1)
    assert (result.value, result.units) == (pytest.approx((rows + repeats).mean()), 10)
    assert bootstrap_both(lambda means: float(means.mean()), rows).low == -math.inf


def _rejections_of_a_true_null(
    clusters: int, rows: int, between: float, trials: int = 400
) -> tuple[float, float]:
    """Rates at which unrelated x and y seem correlated, by percentiles and by widened percentiles.

    Moments of whole clusters stand for their rows, which makes 600 resamples one product of matrices.
    """
    rng = np.random.default_rng(int(10 * between) + rows)
    result = np.zeros(2)
    for _ in range(trials):
        x, y = (np.sqrt(between) * rng.normal(size=(clusters, 1)) + np.sqrt(1 - between) * rng.normal(
            size=(clusters, rows)) for _ in range(2))  # fmt: skip
        moments = np.stack([np.full(clusters, rows), x.sum(1), y.sum(1), (x * x).sum(1), (y * y).sum(1),
                            (x * y).sum(1)])  # fmt: skip
        weights = np.vstack(
            [np.ones(clusters), rng.multinomial(clusters, np.full(clusters, 1 / clusters), 600)]
        )
        n, sx, sy, xx, yy, xy = moments @ weights.T
        with np.errstate(all="ignore"):
            r = (xy - sx * sy / n) / np.sqrt((xx - sx * sx / n) * (yy - sy * sy / n))
        low, high = np.nanquantile(r[1:], [0.025, 0.975])
        for place, factor in enumerate((1.0, widening(clusters))):
            result[place] += r[0] + factor * (low - r[0]) > 0 or r[0] + factor * (high - r[0]) < 0
    return tuple(result / trials)


@pytest.mark.thorough
def test_widened_percentiles_of_six_clusters_reject_a_true_null_in_five_per_cent() -> None:
    rates = np.array(
        [
            _rejections_of_a_true_null(6, rows, between)
            for rows in (1, 8)
            for between in (0.0, 0.3, 0.8)
        ]
    )
    plain, widened = rates.mean(0)
    assert plain > 0.08
    assert widened < 0.065 and rates[:, 1].max() < 0.09


def test_a_bootstrap_of_few_units_is_the_widened_one() -> None:
    values = VALUES[:6]
    result = bootstrap(lambda rows: float(values[rows].mean()), 6)
    many = np.random.default_rng(0).integers(0, 6, (2000, 6))
    low, high = np.quantile(values[many].mean(1), [0.025, 0.975])
    middle = values.mean()
    assert (result.low, result.high) == pytest.approx((middle + widening(6) * (low - middle),
                                                     middle + widening(6) * (high - middle)))  # fmt: skip
