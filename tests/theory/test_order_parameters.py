"""Averages over Gaussian inputs against quadrature, samples and special cases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad

from gapscope.base.errors import InvalidInput
from gapscope.theory.statistical_mechanics import (
    Student,
    correlation_slopes,
    generalization_error,
    order_parameter_integrals,
    output_correlations,
)

GRID = [(gamma, overlap) for gamma in (0.3, 0.7, 1.4) for overlap in (-0.9, -0.2, 0.4, 0.95)]


def _activate(values: Any, kind: Student) -> Any:
    return np.maximum(values, 0) if kind == "relu" else values


def _slope(values: Any, kind: Student) -> Any:
    return (values > 0) * 1.0 if kind == "relu" else np.ones_like(values)


def _by_quadrature(function: Callable[[float, float], float], gamma: float, overlap: float) -> float:
    """Average a function of (s, t), homogeneous of degree 2, over the angle."""
    angle = np.arccos(overlap)

    def integrand(theta: float) -> float:
        return function(gamma * np.cos(theta - angle), np.cos(theta)) / np.pi

    kinks = sorted({np.pi / 2, 3 * np.pi / 2, (angle + np.pi / 2) % (2 * np.pi), (angle - np.pi / 2) % (2 * np.pi)})
    return quad(integrand, 0, 2 * np.pi, points=kinks, epsabs=1e-12, limit=200)[0]


@pytest.mark.parametrize("student", ["relu", "linear"])
@pytest.mark.parametrize(("gamma", "overlap"), GRID)
def test_integrals_equal_quadrature(student: Student, gamma: float, overlap: float) -> None:
    def pull(s: float, t: float) -> float:
        return _slope(s, student) * (_activate(t, student) - _activate(s, student))

    found = order_parameter_integrals(gamma, overlap, student=student)
    expected = [
        _by_quadrature(lambda s, t: pull(s, t) * s, gamma, overlap),
        _by_quadrature(lambda s, t: pull(s, t) ** 2, gamma, overlap),
        _by_quadrature(lambda s, t: pull(s, t) * t, gamma, overlap),
    ]
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_printed_middle_term_is_wrong_except_at_overlap_one() -> None:
    """The paper's second average, printed with pi R for pi, misses the true one by up to 0.4."""

    def printed(gamma: float, overlap: float) -> float:
        sine, angle = np.sqrt(1 - overlap**2), np.arcsin(overlap)
        middle = (np.pi * overlap + 2 * overlap * sine + 2 * angle) / (4 * np.pi)
        last = gamma * (np.pi * overlap + 2 * sine + 2 * overlap * angle) / (2 * np.pi)
        return gamma**2 / 2 + middle - last

    misses = [abs(printed(gamma, overlap) - order_parameter_integrals(gamma, overlap).i2) for gamma, overlap in GRID]
    assert max(misses) > 0.4
    assert printed(0.7, 1.0) == pytest.approx(float(order_parameter_integrals(0.7, 1.0).i2), abs=1e-12)


@pytest.mark.parametrize("student", ["relu", "linear"])
def test_correlation_slopes_equal_central_differences(student: Student) -> None:
    overlap, step = np.linspace(-0.95, 0.95, 9), 1e-6
    upper, lower = output_correlations(overlap + step, student), output_correlations(overlap - step, student)
    numerical = (np.array(upper) - np.array(lower)) / (2 * step)
    np.testing.assert_allclose(correlation_slopes(overlap, student), numerical, atol=1e-9)


@pytest.mark.parametrize("student", ["relu", "linear"])
@pytest.mark.parametrize("teacher", ["relu", "linear"])
@pytest.mark.parametrize(("gamma", "overlap"), GRID[::3])
def test_generalization_error_equals_quadrature(
    student: Student, teacher: Student, gamma: float, overlap: float
) -> None:
    expected = _by_quadrature(lambda s, t: (_activate(t, teacher) - _activate(s, student)) ** 2, gamma, overlap)
    found = generalization_error(gamma, overlap, student=student, teacher=teacher)
    assert found == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gamma": -0.1}, r"gamma must lie in \[0, inf\); got -0\.1"),
        ({"overlap": [0.2, 1.5]}, r"overlap must be in \[-1, 1\]; got \[0\.2 1\.5\]\. It is a cosine"),
        ({"student": "rely"}, r"student must be one of 'relu', 'linear'; got 'rely'\. Did you mean 'relu'"),
    ],
)
def test_wrong_input(settings: dict[str, Any], message: str) -> None:
    for function in (order_parameter_integrals, generalization_error):
        with pytest.raises(InvalidInput, match=message):
            function(**{"gamma": 0.5, "overlap": 0.5, **settings})
