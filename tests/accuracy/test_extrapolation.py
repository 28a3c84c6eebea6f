"""Extrapolation of learning curves: the conditional mean written out, calibration, scores without a scale."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gapscope.accuracy.extrapolation import (
    BETWEEN_NETWORKS,
    DECAY,
    GROWTH_DEVIATION,
    MEAN_GROWTH,
    MODEL_DEVIATION,
    SizedScore,
    extrapolate,
)


@pytest.mark.parametrize(("small_size", "large_size"), [(150, 300), (150, 480)])
def test_the_prediction_is_the_conditional_mean_of_the_model(
    small_size: int, large_size: int
) -> None:
    """Oracle: conditioning of the joint normal distribution of level, growth and both errors."""
    n, p, q = 600, 0.74, 0.62
    large, small = SizedScore(large_size, p, 0.0007), SizedScore(small_size, q, 0.0005)
    result = extrapolate(large, small, n)
    headroom = 1 - (p + q) / 2

    def growth(size: float) -> float:
        return sum_of_doublings(math.log2(size / small_size))

    # level with a flat prior, growth of the first doubling
    prior = np.diag([1e3, (GROWTH_DEVIATION * headroom) ** 2])
    centre = np.array([0.0, MEAN_GROWTH * headroom])
    observe = np.array([[1.0, growth(large_size)], [1.0, 0.0]])
    noise = np.diag([large.variance, small.variance])
    target = np.array([1.0, growth(n)])
    gain = prior @ observe.T @ np.linalg.inv(observe @ prior @ observe.T + noise)
    posterior = centre + gain @ (np.array([p, q]) - observe @ centre)
    covariance = prior - gain @ observe @ prior
    assert result.value == pytest.approx(target @ posterior, abs=1e-6)
    model = (MODEL_DEVIATION * headroom) ** 2 * math.log2(n / large_size) + BETWEEN_NETWORKS**2
    assert result.standard_error**2 == pytest.approx(target @ covariance @ target + model, abs=1e-6)


def sum_of_doublings(doublings: float) -> float:
    return (1 - DECAY**doublings) / (1 - DECAY)


def test_intervals_cover_curves_of_the_model() -> None:
    random, n, covered = np.random.default_rng(0), 400, []
    for _ in range(1000):
        level = random.uniform(0.5, 0.9)
        growth = (1 - level) * random.normal(MEAN_GROWTH, GROWTH_DEVIATION)
        at = [level, level + growth, level + (1 + DECAY) * growth]
        at[2] += (1 - level) * MODEL_DEVIATION * random.normal()
        quarter, half = (
            random.binomial(m, min(max(p, 0), 1)) / m for m, p in ((300, at[0]), (200, at[1]))
        )
        result = extrapolate(
            SizedScore(200, half, half * (1 - half) / 200),
            SizedScore(100, quarter, quarter * (1 - quarter) / 300),
            n,
        )
        covered.append(abs(result.value - at[2]) <= result.reach)
    assert 0.90 <= np.mean(covered) <= 0.97


def test_a_slope_counts_as_far_as_it_exceeds_its_noise() -> None:
    def weight(variance: float) -> float:
        result = extrapolate(SizedScore(300, 0.8, variance), SizedScore(150, 0.7, variance), 600)
        assert result.slope_weight is not None
        return result.slope_weight

    assert weight(0.0) == pytest.approx(DECAY)
    weights = [weight(variance) for variance in (1e-6, 1e-4, 1e-3, 1e-2)]
    assert weights == sorted(weights, reverse=True)
    assert weights[-1] < 0  # the larger run was lucky


def test_one_size_is_not_extrapolated() -> None:
    result = extrapolate(SizedScore(900, 0.8, 0.0016), None, 1000)
    assert (result.value, result.standard_error) == (0.8, pytest.approx(math.hypot(0.04, 0.01)))


def test_a_score_without_a_scale_follows_half_of_its_slope() -> None:
    exact = extrapolate(
        SizedScore(300, -1.0, 0.0), SizedScore(150, -1.4, 0.0), 600, is_fraction=False
    )
    assert exact.value == pytest.approx(-1.0 + 0.5 * 0.4)
    assert exact.standard_error == pytest.approx(0.25 * 0.4)
    noisy = extrapolate(
        SizedScore(300, -1.0, 0.1), SizedScore(150, -1.4, 0.1), 600, is_fraction=False
    )
    # noise widens the interval, and leaves the growth that it may hide
    assert noisy.value == exact.value
    assert noisy.standard_error**2 == pytest.approx((1.5**2 + 0.5**2) * 0.1 + 0.1**2)
