"""Resamples as weights, intervals as percentiles."""

from __future__ import annotations

import numpy
import pytest
from scipy import stats

from gapscope.statistics.intervals import percentile_interval, resample_weights


def test_weights_are_resamples_with_replacement() -> None:
    weights = resample_weights(5, 20_000, 0)
    assert weights.shape == (20_000, 5) and (weights.sum(1) == 5).all() and (weights == weights.round()).all()
    assert weights.mean(0) == pytest.approx(numpy.ones(5), abs=0.03)
    assert weights.var(0) == pytest.approx(numpy.full(5, 0.8), abs=0.05)  # n p (1 - p)
    assert (resample_weights(5, 3, 1) == resample_weights(5, 3, 1)).all()


def test_the_interval_of_a_mean_is_scipys() -> None:
    values = numpy.random.default_rng(0).normal(size=40)
    means = resample_weights(40, 20_000, 1) @ values / 40
    theirs = stats.bootstrap((values,), numpy.mean, n_resamples=20_000, method="percentile", rng=2).confidence_interval
    assert percentile_interval(means, 0.95) == pytest.approx((theirs.low, theirs.high), abs=0.02)


def test_values_that_are_not_finite_are_left_out() -> None:
    assert percentile_interval([numpy.nan, 1.0, numpy.inf], 0.9) == (1.0, 1.0)
    assert numpy.isnan(percentile_interval([numpy.nan], 0.9)).all()
