from __future__ import annotations

import numpy
import pytest

from gapscope.leaderboard.association import cross_validated_line

NONE = numpy.empty((0, 30), dtype=int)


def test_each_recipe_is_predicted_by_the_line_of_the_others() -> None:
    rng = numpy.random.default_rng(0)
    x, clusters = rng.normal(size=30), numpy.arange(30) // 3
    y = x + rng.normal(size=30)
    errors, plain = numpy.empty(30), numpy.empty(30)
    for number in range(10):
        out, rest = clusters == number, clusters != number
        slope, intercept = numpy.polyfit(x[rest], y[rest], 1)
        errors[out], plain[out] = y[out] - slope * x[out] - intercept, y[out] - y[rest].mean()
    found = cross_validated_line(x, y, clusters, NONE)
    assert found.r_squared.value == pytest.approx(1 - (errors**2).sum() / (plain**2).sum())
    assert found.mae.value == pytest.approx(numpy.abs(errors).mean())
    assert found.r_squared.low < found.r_squared.value < found.r_squared.high
    assert found.mae.low < found.mae.value < found.mae.high


def test_permutations_are_lines_through_permuted_gaps() -> None:
    rng = numpy.random.default_rng(1)
    x, y, orders = rng.normal(size=30), rng.normal(size=30), numpy.array([rng.permutation(30) for _ in range(3)])
    found = cross_validated_line(x, y, numpy.arange(30), orders)
    expected = [cross_validated_line(x, y[order], numpy.arange(30), NONE).r_squared.value for order in orders]
    assert found.permuted == pytest.approx(expected)


def test_a_constant_measure_predicts_the_mean() -> None:
    y = numpy.random.default_rng(2).normal(size=30)
    assert cross_validated_line(numpy.ones(30), y, numpy.arange(30), NONE).r_squared.value == pytest.approx(0, abs=1e-9)
