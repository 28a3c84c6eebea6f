"""Generalization over P / N: gold values, limits, derivatives, sampled tasks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gapscope.base.errors import InvalidInput
from gapscope.theory.dynamics import resolvent_trace, student_generalization
from gapscope.theory.teacher_students import draw_teacher_task, least_squares_students


@pytest.mark.parametrize(
    ("zeta", "alpha", "error", "trace"),
    [
        (1 / 64, 1, 0.94322815, 7.51560977),
        (1 / 64, 0.5, 0.72338568, 32.94276354),
        (0.25, 0.5, 0.64038820, 2.56155281),
        (0.25, 1, 0.39038820, 1.56155281),
        (0.25, 2, 0.17539053, 0.70156212),
    ],
)
def test_krogh_hertz_gold(zeta: float, alpha: float, error: float, trace: float) -> None:
    assert student_generalization(alpha, zeta=zeta) == pytest.approx(error, abs=1e-8)
    assert resolvent_trace(alpha, zeta) == pytest.approx(trace, abs=1e-8)


def test_resolvent_equals_the_printed_formula_and_drawn_samples() -> None:
    alpha, zeta = np.array([[0.3], [1.0], [2.5]]), np.array([0.01, 0.25, 3.0])
    roots = np.sqrt((zeta + (1 + np.sqrt(alpha)) ** 2) * (zeta + (1 - np.sqrt(alpha)) ** 2))
    np.testing.assert_allclose(resolvent_trace(alpha, zeta), (1 - alpha - zeta + roots) / (2 * zeta), rtol=1e-12)
    inputs = np.random.default_rng(0).standard_normal((300, 600)) / np.sqrt(600)
    drawn = np.trace(np.linalg.inv(inputs.T @ inputs + 0.25 * np.eye(600))) / 600
    assert resolvent_trace(0.5, 0.25) == pytest.approx(drawn, rel=3e-3)


def test_resolvent_without_ridge() -> None:
    np.testing.assert_array_equal(resolvent_trace([0.5, 1.0, 2.0], 0.0), [np.inf, np.inf, 1.0])


@pytest.mark.parametrize("alpha", [0.4, 1.0, 1.7])
def test_error_equals_the_derivatives_of_the_resolvent(alpha: float) -> None:
    """Printed form: S d(zeta G)/d zeta - zeta^2 dG/d zeta, by central differences."""
    zeta, noise, step = 0.2, 0.3, 1e-6
    upper, lower = resolvent_trace(alpha, zeta + step), resolvent_trace(alpha, zeta - step)
    product = ((zeta + step) * upper - (zeta - step) * lower) / (2 * step)
    expected = noise * product - zeta**2 * (upper - lower) / (2 * step)
    assert student_generalization(alpha, zeta=zeta, noise_variance=noise) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("noise", [0.0, 0.25])
def test_sgd_equals_the_printed_formulas(noise: float) -> None:
    low, high = np.array([0.0, 0.3, 0.9]), np.array([1.1, 2.0, 5.0])
    found = student_generalization(np.r_[low, high], noise_variance=noise)
    np.testing.assert_allclose(found, np.r_[1 - low + low * noise / (1 - low), noise / (high - 1)], atol=1e-12)
    low, high = np.array([0.0, 0.5, 1.9]), np.array([2.1, 3.0])
    found = student_generalization(np.r_[low, high], noise_variance=noise, student="relu")
    expected = np.r_[1 - low / 4 + low * noise / (2 * (2 - low)), 0.5 + noise / (high - 2)]
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_loss_per_sample_has_the_ridge_constant_alpha_zeta() -> None:
    found = student_generalization([0.5, 2.0], zeta=0.2, loss_scale="samples")
    np.testing.assert_allclose(found, [student_generalization(0.5, zeta=0.1), student_generalization(2.0, zeta=0.4)])


def _drawn(alpha: float, students: int, size: int, **settings: Any) -> float:
    noise = settings.pop("noise_variance", 0.25)
    generator = np.random.default_rng(round(1000 * alpha))
    task = draw_teacher_task(alpha, n_inputs=size, students=students, noise_variance=noise, generator=generator)
    return float(least_squares_students(task, **settings).generalization_error.mean())


@pytest.mark.parametrize("alpha", [0.25, 0.5, 0.8, 1.25, 2.0, 3.0])
def test_shortest_least_squares_lies_on_the_sgd_curve(alpha: float) -> None:
    assert _drawn(alpha, 8, 400) == pytest.approx(float(student_generalization(alpha)), rel=0.075)


@pytest.mark.parametrize("zeta", [1 / 64, 0.25])
@pytest.mark.parametrize("alpha", [0.5, 0.95, 2.0])
def test_ridge_regression_lies_on_the_krogh_hertz_curve(zeta: float, alpha: float) -> None:
    expected = float(student_generalization(alpha, zeta=zeta))
    assert _drawn(alpha, 16, 400, zeta=zeta) == pytest.approx(expected, rel=0.075 if alpha == 0.95 else 0.05)


@pytest.mark.parametrize(("noise", "tolerance"), [(0.25, 0.011), (0.0, 0.012)])
@pytest.mark.parametrize("alpha", [0.25, 0.5, 1.0])
def test_fit_of_the_positive_targets_lies_on_the_relu_curve(alpha: float, noise: float, tolerance: float) -> None:
    expected = float(student_generalization(alpha, student="relu", noise_variance=noise))
    found = _drawn(alpha, 16, 300, student="relu", noise_variance=noise)
    assert found == pytest.approx(expected, abs=tolerance)


def test_fit_of_the_positive_targets_with_decay() -> None:
    expected = float(student_generalization(1.5, student="relu", zeta=0.25))
    assert _drawn(1.5, 16, 300, student="relu", zeta=0.25) == pytest.approx(expected, abs=0.01)


def test_wrong_input() -> None:
    with pytest.raises(InvalidInput, match=r"alpha must lie in \[0, inf\); got -1\.0"):
        student_generalization([0.5, -1.0])
    with pytest.raises(InvalidInput, match=r"ridge must lie in \[0, inf\); got nan"):
        resolvent_trace(0.5, float("nan"))
    with pytest.raises(InvalidInput, match=r"loss_scale must be one of 'inputs', 'samples'; got 'mean'"):
        student_generalization(0.5, loss_scale="mean")  # type: ignore[arg-type]
