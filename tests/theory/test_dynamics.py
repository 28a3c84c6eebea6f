"""Dynamics against gold values, generalization over P / N against limits and sampled tasks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gapscope.base.errors import InvalidInput
from gapscope.theory.dynamics import (
    learning_dynamics,
    order_parameter_flow,
    resolvent_trace,
    student_generalization,
)
from gapscope.theory.fixed_points import fixed_point
from gapscope.theory.statistical_mechanics import Student, order_parameter_integrals
from gapscope.theory.teacher_students import draw_teacher_task, least_squares_students


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"learning_rate": 0.5, "zeta": 0.25},
            {4: (0.373604, 0.412106, 1.019179), 16: (0.538169, 0.850079, 1.073768)},
        ),
        ({"learning_rate": 0.5}, {16: (0.845593, 0.935231, 1.103635)}),
        (
            {"learning_rate": 1.5, "zeta": 0.25, "student": "linear"},
            {16: (0.794254, 0.992897, 1.511424)},
        ),
        (
            {"learning_rate": 0.5, "method": "sgd"},
            {4: (0.71868, 0.806133, 0.71868), 16: (0.979455, 0.997469, 0.979455)},
        ),
    ],
)
def test_gold(settings: dict[str, Any], expected: dict[int, tuple[float, ...]]) -> None:
    path = learning_dynamics(list(expected), **settings)
    result = np.stack([path.gamma, path.overlap, path.length], axis=1)
    np.testing.assert_allclose(result, list(expected.values()), atol=1e-5)


@pytest.mark.parametrize("student", ["relu", "linear"])
def test_flow_equals_the_flow_of_products(student: Student) -> None:
    gamma, overlap, length, rate, zeta = 0.7, 0.4, 1.3, 0.6, 0.2
    i1, i2, i3 = order_parameter_integrals(gamma, overlap, student=student)
    flow = order_parameter_flow(
        gamma, overlap, length, learning_rate=rate, student=student, zeta=zeta
    )
    # eq. 9: the flows of gamma^2, R L and L^2 follow from those of gamma, R and L
    assert 2 * gamma * flow.gamma == pytest.approx(2 * rate * i1 - 2 * rate * zeta * gamma**2)
    product_flow = rate * gamma / length * i3 - rate * overlap / length * i1
    assert overlap * flow.length + length * flow.overlap == pytest.approx(product_flow)
    assert 2 * length * flow.length == pytest.approx(rate**2 * gamma**2 / length**2 * i2)
    # SGD, from w += eta delta x: d(gamma R)/dt = eta I3, d(gamma^2)/dt = 2 eta I1 + eta^2 I2
    flow = order_parameter_flow(gamma, overlap, method="sgd", learning_rate=rate, student=student)
    assert overlap * flow.gamma + gamma * flow.overlap == pytest.approx(rate * i3)
    assert 2 * gamma * flow.gamma == pytest.approx(2 * rate * i1 + rate**2 * i2)
    assert flow.length == flow.gamma


@pytest.mark.parametrize(("student", "zeta"), [("relu", 0.05), ("relu", 0.25), ("linear", 0.25)])
def test_long_training_ends_near_the_fixed_point(student: Student, zeta: float) -> None:
    path = learning_dynamics([3000], learning_rate=0.5, student=student, zeta=zeta)
    assert path.gamma[0] == pytest.approx(
        float(fixed_point(student=student, zeta=zeta).gamma), abs=1.1e-3
    )
    assert path.overlap[0] < 1 - 1e-4, "R reaches 1 only as L grows without bound"


@pytest.mark.parametrize("student", ["relu", "linear"])
def test_sgd_is_stable_up_to_a_learning_rate_of_two(student: Student) -> None:
    below = learning_dynamics(
        [200], learning_rate=1.95, method="sgd", student=student, gamma=1.0, overlap=0.99
    )
    assert below.gamma[0] == pytest.approx(1, abs=1e-6) and below.overlap[0] == pytest.approx(
        1, abs=1e-6
    )
    above = learning_dynamics(
        [200], learning_rate=2.05, method="sgd", student=student, gamma=1.0, overlap=0.99
    )
    if student == "relu":
        assert above.overlap[0] == pytest.approx(0.977, abs=5e-4)
    else:
        assert above.gamma[0] > 100


def test_divergence_is_nan_from_then_on() -> None:
    path = learning_dynamics([1, 100, 200], learning_rate=5.0, method="sgd", student="linear")
    assert (
        np.isfinite(path.gamma[0])
        and np.isnan(path.gamma[1:]).all()
        and np.isnan(path.overlap[1:]).all()
    )
    early = learning_dynamics([100], learning_rate=50.0, method="sgd", student="linear")
    assert np.isnan(early.length).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"times": [2, 1]}, r"times must be 0 or larger, increase, .* got \[2, 1\]"),
        ({"times": []}, r"got \[\]"),
        (
            {"method": "sgd", "zeta": 0.1},
            "zeta must be 0 for method 'sgd', which has no gamma; got 0.1",
        ),
        ({"method": "sgd", "length": 2.0}, "Got length 2.0 for method 'sgd'"),
    ],
)
def test_wrong_input_of_dynamics(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        learning_dynamics(**{"times": [1], "learning_rate": 0.5, **settings})


def test_resolvent_equals_the_printed_formula_and_sampled_matrices() -> None:
    alpha, zeta = np.array([[0.3], [1.0], [2.5]]), np.array([0.01, 0.25, 3.0])
    roots = np.sqrt((zeta + (1 + np.sqrt(alpha)) ** 2) * (zeta + (1 - np.sqrt(alpha)) ** 2))
    np.testing.assert_allclose(
        resolvent_trace(alpha, zeta), (1 - alpha - zeta + roots) / (2 * zeta), rtol=1e-12
    )
    inputs = np.random.default_rng(0).standard_normal((300, 600)) / np.sqrt(600)
    sampled = np.trace(np.linalg.inv(inputs.T @ inputs + 0.25 * np.eye(600))) / 600
    assert resolvent_trace(0.5, 0.25) == pytest.approx(sampled, rel=3e-3)
    np.testing.assert_array_equal(resolvent_trace([0.5, 1.0, 2.0], 0.0), [np.inf, np.inf, 1.0])


@pytest.mark.parametrize("alpha", [0.4, 1.0, 1.7])
def test_error_equals_the_derivatives_of_the_resolvent(alpha: float) -> None:
    """Printed form: S d(zeta G)/d zeta - zeta^2 dG/d zeta, by central differences."""
    zeta, noise, step = 0.2, 0.3, 1e-6
    upper, lower = resolvent_trace(alpha, zeta + step), resolvent_trace(alpha, zeta - step)
    product = ((zeta + step) * upper - (zeta - step) * lower) / (2 * step)
    expected = noise * product - zeta**2 * (upper - lower) / (2 * step)
    assert student_generalization(alpha, zeta=zeta, noise_variance=noise) == pytest.approx(
        expected, abs=1e-8
    )


@pytest.mark.parametrize("noise", [0.0, 0.25])
def test_sgd_equals_the_printed_formulas(noise: float) -> None:
    low, high = np.array([0.0, 0.3, 0.9]), np.array([1.1, 2.0, 5.0])
    result = student_generalization(np.r_[low, high], noise_variance=noise)
    np.testing.assert_allclose(
        result, np.r_[1 - low + low * noise / (1 - low), noise / (high - 1)], atol=1e-12
    )
    low, high = np.array([0.0, 0.5, 1.9]), np.array([2.1, 3.0])
    result = student_generalization(np.r_[low, high], noise_variance=noise, student="relu")
    expected = np.r_[1 - low / 4 + low * noise / (2 * (2 - low)), 0.5 + noise / (high - 2)]
    np.testing.assert_allclose(result, expected, atol=1e-12)


def _simulated_error(alpha: float, students: int, size: int, **settings: Any) -> float:
    noise = settings.pop("noise_variance", 0.25)
    generator = np.random.default_rng(round(1000 * alpha))
    task = draw_teacher_task(
        alpha, n_inputs=size, students=students, noise_variance=noise, generator=generator
    )
    return float(least_squares_students(task, **settings).generalization_error.mean())


@pytest.mark.parametrize("alpha", [0.25, 0.5, 0.8, 1.25, 2.0, 3.0])
def test_shortest_least_squares_on_the_sgd_curve(alpha: float) -> None:
    assert _simulated_error(alpha, 8, 400) == pytest.approx(
        float(student_generalization(alpha)), rel=0.075
    )


@pytest.mark.parametrize("zeta", [1 / 64, 0.25])
@pytest.mark.parametrize("alpha", [0.5, 0.95, 2.0])
def test_ridge_regression_on_the_krogh_hertz_curve(zeta: float, alpha: float) -> None:
    expected = float(student_generalization(alpha, zeta=zeta))
    assert _simulated_error(alpha, 16, 400, zeta=zeta) == pytest.approx(
        expected, rel=0.075 if alpha == 0.95 else 0.05
    )


@pytest.mark.parametrize(
    ("alpha", "settings", "tolerance"),
    [
        *((alpha, {"noise_variance": 0.25}, 0.011) for alpha in (0.25, 0.5, 1.0)),
        *((alpha, {"noise_variance": 0.0}, 0.012) for alpha in (0.25, 0.5, 1.0)),
        (1.5, {"zeta": 0.25}, 0.01),
    ],
)
def test_fit_of_positive_targets_on_the_relu_curve(
    alpha: float, settings: dict[str, Any], tolerance: float
) -> None:
    expected = float(student_generalization(alpha, student="relu", **settings))
    assert _simulated_error(alpha, 16, 300, student="relu", **settings) == pytest.approx(
        expected, abs=tolerance
    )
