"""Fixed points against Table 1 and the Jacobian, shrinkage against sampled batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gapscope.base.errors import InvalidInput
from gapscope.theory.dynamics import order_parameter_flow
from gapscope.theory.fixed_points import (
    batch_norm_gamma,
    batch_norm_zeta,
    dynamics_jacobian,
    effective_learning_rate,
    fixed_point,
    max_learning_rate,
    stability_eigenvalues,
)
from gapscope.theory.statistical_mechanics import (
    Student,
    activity,
    correlation_slopes,
    order_parameter_integrals,
)

STUDENTS: tuple[Student, Student] = ("relu", "linear")


@pytest.mark.parametrize("student", STUDENTS)
@pytest.mark.parametrize("zeta", [0.0, 0.25])
def test_fixed_point_rests(student: Student, zeta: float) -> None:
    point = fixed_point(student=student, zeta=zeta)
    assert point.gamma == pytest.approx(1 / (1 + (2 if student == "relu" else 1) * zeta))
    flow = order_parameter_flow(*point, learning_rate=0.5, student=student, zeta=zeta)
    assert flow.gamma == pytest.approx(0, abs=1e-15)
    # For zeta > 0 the rest is of second order in the learning rate.
    squares = activity(student) * (1 - point.gamma) ** 2
    assert order_parameter_integrals(point.gamma, 1.0, student=student).i2 == pytest.approx(
        squares, abs=1e-15
    )
    assert flow.overlap == pytest.approx(-(0.5**2) * point.gamma**2 * squares / 2, abs=1e-15)


@pytest.mark.parametrize("student", STUDENTS)
@pytest.mark.parametrize("zeta", [0.0, 0.05, 0.25, 1.0])
def test_learning_rates_equal_table_1(student: Student, zeta: float) -> None:
    """The table's expressions, built from derivatives of the integrals at (gamma_0, 1)."""
    gain, active = float(fixed_point(student=student, zeta=zeta).gamma), activity(student)
    outputs_slope, teacher_slope = (
        float(slope) for slope in correlation_slopes(np.array(1.0), student)
    )
    slope_i1, slope_i3 = gain * outputs_slope, teacher_slope - active * gain
    slope_i2 = teacher_slope - 2 * gain * outputs_slope
    printed = ((gain * slope_i3 - slope_i1) / gain - zeta * gain) / (slope_i2 / 2)
    result = max_learning_rate(student=student, zeta=zeta)
    assert result == pytest.approx(printed)
    assert result == pytest.approx(2 + (4 if student == "relu" else 2) * zeta)
    assert result >= max_learning_rate(student=student) + 2 * zeta - 1e-12, "Proposition 4"
    assert effective_learning_rate(0.7, student=student, zeta=zeta, length=1.5) == pytest.approx(
        0.7 * gain / 2.25
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "weight_norm", "student": "relu", "zeta": 0.2},
        {"method": "weight_norm", "student": "linear", "zeta": 0.2},
        {"method": "sgd", "student": "relu"},
        {"method": "sgd", "student": "linear"},
    ],
)
def test_jacobian_equals_central_differences(settings: dict[str, Any]) -> None:
    point = np.array([0.7, 0.4] if settings["method"] == "sgd" else [0.7, 0.4, 1.3])

    def flow(state: np.ndarray) -> np.ndarray:
        return np.array(order_parameter_flow(*state, learning_rate=0.6, **settings))[: len(point)]

    steps = 1e-6 * np.eye(len(point))
    numerical = np.stack(
        [(flow(point + step) - flow(point - step)) / 2e-6 for step in steps], axis=1
    )
    np.testing.assert_allclose(
        dynamics_jacobian(*point, learning_rate=0.6, **settings), numerical, atol=1e-9
    )


@pytest.mark.parametrize("student", STUDENTS)
@pytest.mark.parametrize("length", [1.0, 1.7])
def test_closed_eigenvalues_are_those_of_the_jacobian_without_decay(
    student: Student, length: float
) -> None:
    closed = stability_eigenvalues(0.5, student=student, length=length)
    jacobian = dynamics_jacobian(1.0, 1.0, length, learning_rate=0.5, student=student)
    expected = [0.0, float(closed.gamma), float(closed.overlap)]
    np.testing.assert_allclose(sorted(np.linalg.eigvals(jacobian)), sorted(expected), atol=1e-12)
    if length == 1.0:
        sgd = dynamics_jacobian(1.0, 1.0, learning_rate=0.5, student=student, method="sgd")
        np.testing.assert_allclose(sorted(np.linalg.eigvals(sgd)), sorted(expected[1:]), atol=1e-12)


@pytest.mark.parametrize("student", STUDENTS)
@pytest.mark.parametrize("rate", [0.5, 2.6])
@pytest.mark.parametrize("zeta", [0.05, 0.25])
def test_closed_overlap_rate_misses_just_the_neglected_term(
    student: Student, rate: float, zeta: float
) -> None:
    gain = float(fixed_point(student=student, zeta=zeta).gamma)
    closed = stability_eigenvalues(rate, student=student, zeta=zeta)
    jacobian = dynamics_jacobian(gain, 1.0, learning_rate=rate, student=student, zeta=zeta)
    assert jacobian[0, 0] == pytest.approx(float(closed.gamma), abs=1e-12)
    neglected = rate**2 * gain**2 / 2 * activity(student) * (1 - gain) ** 2
    assert jacobian[1, 1] - closed.overlap == pytest.approx(-neglected, abs=1e-12)


@pytest.mark.parametrize("student", STUDENTS)
@pytest.mark.parametrize("batch_size", [16, 32])
def test_gamma_minimizes_the_loss_of_sampled_batches(student: Student, batch_size: int) -> None:
    """Least squares of g(t) on g(t / sigma_B), with standard errors 4e-4 and 2e-4."""
    teacher = np.random.default_rng(0).standard_normal((200_000, batch_size))
    normed = teacher / np.sqrt(np.mean(teacher**2, axis=1, keepdims=True))
    if student == "relu":
        teacher, normed = np.maximum(teacher, 0), np.maximum(normed, 0)
    best = np.sum(teacher * normed) / np.sum(normed**2)
    assert best == pytest.approx(float(batch_norm_gamma(batch_size)), abs=1e-3)


def test_paper_zeta_is_the_shrinkage_to_first_order() -> None:
    """Output scale gamma* E[sigma_B] and fixed point agree up to O(1 / M^2)."""
    np.testing.assert_allclose(batch_norm_gamma([16, 32]), [0.984506, 0.992219], atol=1e-6)
    sizes = np.array([16.0, 32.0, 1024.0])
    decayed = fixed_point(student="linear", zeta=batch_norm_zeta(sizes)).gamma
    gaps = np.abs(decayed - batch_norm_gamma(sizes) ** 2)
    assert np.all(gaps * sizes**2 < 0.3)
    exact = 1 / batch_norm_gamma(32) ** 2 - 1
    assert exact / batch_norm_zeta(32) == pytest.approx(1.008, abs=5e-4)


@pytest.mark.parametrize("argument", ["a", [1, "b"]])
def test_what_is_no_number_is_refused(argument: Any) -> None:
    with pytest.raises(InvalidInput, match="batch_size must be a"):
        batch_norm_gamma(argument)
    with pytest.raises(InvalidInput, match="zeta must be a"):
        fixed_point(zeta=argument)
