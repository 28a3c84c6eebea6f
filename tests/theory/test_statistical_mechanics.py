"""Order parameters by quadrature, and the saddle point of the free energy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad

from gapscope.base.errors import InvalidInput
from gapscope.theory.dynamics import resolvent_trace, student_generalization
from gapscope.theory.statistical_mechanics import (
    Student,
    activity,
    equilibrium,
    free_energy,
    generalization_error,
    order_parameter_integrals,
)
from gapscope.theory.teacher_students import draw_teacher_task, least_squares_students

GRID = [(gamma, overlap) for gamma in (0.3, 0.7, 1.4) for overlap in (-0.9, -0.2, 0.4, 0.95)]


def _activate(values: Any, kind: Student) -> Any:
    return np.maximum(values, 0) if kind == "relu" else values


def _slope(values: Any, kind: Student) -> Any:
    return (values > 0) * 1.0 if kind == "relu" else np.ones_like(values)


def _by_quadrature(
    function: Callable[[float, float], float], gamma: float, overlap: float
) -> float:
    """Average a function of (s, t), homogeneous of degree 2, over the angle."""
    angle = np.arccos(overlap)

    def integrand(theta: float) -> float:
        return function(gamma * np.cos(theta - angle), np.cos(theta)) / np.pi

    kinks = sorted(
        {
            np.pi / 2,
            3 * np.pi / 2,
            (angle + np.pi / 2) % (2 * np.pi),
            (angle - np.pi / 2) % (2 * np.pi),
        }
    )
    return quad(integrand, 0, 2 * np.pi, points=kinks, epsabs=1e-12, limit=200)[0]


@pytest.mark.parametrize("student", ["relu", "linear"])
@pytest.mark.parametrize(("gamma", "overlap"), GRID)
def test_integrals_equal_quadrature(student: Student, gamma: float, overlap: float) -> None:
    def pull(s: float, t: float) -> float:
        return _slope(s, student) * (_activate(t, student) - _activate(s, student))

    result = order_parameter_integrals(gamma, overlap, student=student)
    expected = [
        _by_quadrature(lambda s, t: pull(s, t) * s, gamma, overlap),
        _by_quadrature(lambda s, t: pull(s, t) ** 2, gamma, overlap),
        _by_quadrature(lambda s, t: pull(s, t) * t, gamma, overlap),
    ]
    np.testing.assert_allclose(result, expected, atol=1e-9)


@pytest.mark.parametrize("student", ["relu", "linear"])
@pytest.mark.parametrize(("gamma", "overlap"), GRID[::3])
def test_generalization_error_equals_quadrature(
    student: Student, gamma: float, overlap: float
) -> None:
    expected = _by_quadrature(lambda s, t: (t - _activate(s, student)) ** 2, gamma, overlap)
    assert generalization_error(gamma, overlap, student=student) == pytest.approx(
        expected, abs=1e-10
    )


POINTS = [
    (alpha, temperature, length)
    for alpha in (0.5, 1.2, 2.0, 3.0)
    for temperature in (0.1, 1.0)
    for length in (0.5, 1.5)
]


@pytest.mark.parametrize("student", ["relu", "linear"])
@pytest.mark.parametrize(("alpha", "temperature", "length"), POINTS)
def test_saddle_is_stationary(
    student: Student, alpha: float, temperature: float, length: float
) -> None:
    point = equilibrium(alpha, temperature=temperature, length=length, student=student)
    assert point.length == pytest.approx(length, abs=1e-10)

    def energy(square: float, product: float) -> float:
        gamma = np.sqrt(square)
        return free_energy(
            gamma, product / gamma, length, alpha=alpha, temperature=temperature, student=student
        )

    square, product = point.gamma**2, point.gamma * point.overlap
    step = 1e-3 * min(point.spread, product)
    by_square = (energy(square + step, product) - energy(square - step, product)) / (2 * step)
    by_product = (energy(square, product + step) - energy(square, product - step)) / (2 * step)
    # Central differences err by step^2 f''' / 6, and f''' grows as 1 / D^3.
    assert abs(by_product) < 1e-6
    assert abs(by_square) < 1e-6 * temperature / point.spread * max(1, square / point.spread)


@pytest.mark.parametrize("student", ["relu", "linear"])
@pytest.mark.parametrize("alpha", [0.5, 1.2, 2.0, 3.0])
@pytest.mark.parametrize("temperature", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("ridge", [0.05, 0.8])
def test_fixed_length_acts_as_a_ridge(
    student: Student, alpha: float, temperature: float, ridge: float
) -> None:
    """The length of ridge regression plus noise T (X'X + ridge)^-1 determines the saddle."""
    active = activity(student)
    trace = float(resolvent_trace(active * alpha, ridge))
    error = (
        float(student_generalization(alpha, student=student, zeta=ridge)) - 1 + active
    ) / active
    product = 1 - ridge * trace
    square = error - 1 + 2 * product
    point = equilibrium(
        alpha,
        temperature=temperature,
        length=float(np.sqrt(square + temperature * trace)),
        student=student,
    )
    assert point.spread == pytest.approx(temperature * trace, rel=1e-9, abs=1e-12)
    assert point.a == pytest.approx(1 + 1 / trace, rel=1e-9)
    assert point.gamma * point.overlap == pytest.approx(product, rel=1e-9)
    assert point.gamma**2 == pytest.approx(square, rel=1e-9)


def test_samples_from_the_gibbs_distribution() -> None:
    """Linear students from exp(-E / T), Gaussian prior: ridge plus noise T (X'X + r)^-1."""
    alpha, temperature, ridge, size = 1.5, 0.3, 0.4, 400
    generator = np.random.default_rng(3)
    task = draw_teacher_task(alpha, n_inputs=size, students=4, generator=generator)
    mean = least_squares_students(task, zeta=ridge)
    result = []
    for inputs, weights, teacher in zip(task.inputs, mean.weights, task.teachers, strict=True):
        root = np.linalg.cholesky(np.linalg.inv(inputs.T @ inputs + ridge * np.eye(size)))
        first, second = (
            weights + np.sqrt(temperature) * generator.standard_normal((2, size)) @ root.T
        )
        result.append([first @ second / size, first @ teacher / size, first @ first / size])
    square, product, length = np.mean(result, axis=0)
    point = equilibrium(
        alpha, temperature=temperature, length=float(np.sqrt(length)), student="linear"
    )
    assert point.gamma**2 == pytest.approx(square, rel=0.1)
    assert point.gamma * point.overlap == pytest.approx(product, rel=0.1)


@pytest.mark.parametrize("student", ["relu", "linear"])
@pytest.mark.parametrize("alpha", [0.3, 0.9, 1.6, 2.5, 4.0])
def test_zero_temperature_without_a_length_is_the_end_of_sgd(
    student: Student, alpha: float
) -> None:
    expected = float(student_generalization(alpha, student=student))
    assert equilibrium(alpha, student=student).generalization_error == pytest.approx(
        expected, rel=1e-12
    )


def test_free_length_adds_its_own_stationarity() -> None:
    point = equilibrium(3.0, temperature=0.2)

    def by_length(length: float) -> float:
        return free_energy(point.gamma, point.overlap, length, alpha=3.0, temperature=0.2)

    assert (
        by_length(point.length + 1e-5) - by_length(point.length - 1e-5)
    ) / 2e-5 == pytest.approx(0, abs=1e-8)
    assert point.a == 1.5


def test_wrong_input() -> None:
    with pytest.raises(InvalidInput, match=r"1.2 at temperature 0.5"):
        equilibrium(1.2, temperature=0.5)
    with pytest.raises(InvalidInput, match=r"\[0, 1.0\); got 1.0"):
        free_energy(1.0, 0.5, 1.0, alpha=1.0, temperature=1.0)
