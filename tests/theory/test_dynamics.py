"""Equations of the order parameters against gold values and their fixed points."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gapscope.base.errors import InvalidInput
from gapscope.theory.dynamics import learning_dynamics, order_parameter_flow
from gapscope.theory.fixed_points import fixed_point
from gapscope.theory.statistical_mechanics import Student, order_parameter_integrals


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"learning_rate": 0.5, "zeta": 0.25},
            {4: (0.373604, 0.412106, 1.019179), 16: (0.538169, 0.850079, 1.073768)},
        ),
        ({"learning_rate": 0.5}, {16: (0.845593, 0.935231, 1.103635)}),
        ({"learning_rate": 1.5, "zeta": 0.25, "student": "linear"}, {16: (0.794254, 0.992897, 1.511424)}),
        (
            {"learning_rate": 0.5, "method": "sgd"},
            {4: (0.71868, 0.806133, 0.71868), 16: (0.979455, 0.997469, 0.979455)},
        ),
    ],
)
def test_gold(settings: dict[str, Any], expected: dict[int, tuple[float, ...]]) -> None:
    path = learning_dynamics(list(expected), **settings)
    found = np.stack([path.gamma, path.overlap, path.length], axis=1)
    np.testing.assert_allclose(found, list(expected.values()), atol=1e-5)


@pytest.mark.parametrize("student", ["relu", "linear"])
def test_flow_equals_the_squared_form(student: Student) -> None:
    """Eq. 9: the flows of gamma^2, R L and L^2 follow from those of gamma, R and L."""
    gamma, overlap, length, rate, zeta = 0.7, 0.4, 1.3, 0.6, 0.2
    i1, i2, i3 = order_parameter_integrals(gamma, overlap, student=student)
    flow = order_parameter_flow(gamma, overlap, length, learning_rate=rate, student=student, zeta=zeta)
    assert 2 * gamma * flow.gamma == pytest.approx(2 * rate * i1 - 2 * rate * zeta * gamma**2)
    turned = rate * gamma / length * i3 - rate * overlap / length * i1
    assert overlap * flow.length + length * flow.overlap == pytest.approx(turned)
    assert 2 * length * flow.length == pytest.approx(rate**2 * gamma**2 / length**2 * i2)


@pytest.mark.parametrize("student", ["relu", "linear"])
def test_sgd_flow_equals_that_of_the_inner_products(student: Student) -> None:
    """From w += eta delta x: d(gamma R)/dt = eta I3, d(gamma^2)/dt = 2 eta I1 + eta^2 I2."""
    gamma, overlap, rate = 0.7, 0.4, 0.6
    i1, i2, i3 = order_parameter_integrals(gamma, overlap, student=student)
    flow = order_parameter_flow(gamma, overlap, method="sgd", learning_rate=rate, student=student)
    assert overlap * flow.gamma + gamma * flow.overlap == pytest.approx(rate * i3)
    assert 2 * gamma * flow.gamma == pytest.approx(2 * rate * i1 + rate**2 * i2)
    assert flow.length == flow.gamma


@pytest.mark.parametrize(("student", "zeta"), [("relu", 0.05), ("relu", 0.25), ("linear", 0.25)])
def test_long_training_ends_near_the_fixed_point(student: Student, zeta: float) -> None:
    path = learning_dynamics([3000], learning_rate=0.5, student=student, zeta=zeta)
    assert path.gamma[0] == pytest.approx(float(fixed_point(student=student, zeta=zeta).gamma), abs=1.1e-3)
    assert path.overlap[0] < 1 - 1e-4, "R reaches 1 only as L grows without bound"


@pytest.mark.parametrize("student", ["relu", "linear"])
def test_sgd_is_stable_up_to_a_learning_rate_of_two(student: Student) -> None:
    below = learning_dynamics([200], learning_rate=1.95, method="sgd", student=student, gamma=1.0, overlap=0.99)
    assert below.gamma[0] == pytest.approx(1, abs=1e-6) and below.overlap[0] == pytest.approx(1, abs=1e-6)
    above = learning_dynamics([200], learning_rate=2.05, method="sgd", student=student, gamma=1.0, overlap=0.99)
    if student == "relu":
        assert above.overlap[0] == pytest.approx(0.977, abs=5e-4)
    else:
        assert above.gamma[0] > 100


def test_divergence_is_nan_from_then_on() -> None:
    path = learning_dynamics([1, 100, 200], learning_rate=5.0, method="sgd", student="linear")
    assert np.isfinite(path.gamma[0]) and np.isnan(path.gamma[1:]).all() and np.isnan(path.overlap[1:]).all()
    early = learning_dynamics([100], learning_rate=50.0, method="sgd", student="linear")
    assert np.isnan(early.length).all()


def test_a_linear_gain_may_pass_through_zero() -> None:
    path = learning_dynamics([0, 1, 50], learning_rate=0.5, student="linear", overlap=-0.9)
    assert path.gamma[1] < 0.5 and abs(path.gamma[2] * path.overlap[2] - 1) < 1e-6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"times": [2, 1]}, "times must increase from 0 or more; got"),
        ({"times": []}, "times must increase"),
        ({"learning_rate": 0.0}, r"learning_rate must lie in \(0, inf\); got 0.0"),
        ({"method": "batch_norm"}, "method must be one of 'weight_norm', 'sgd'; got 'batch_norm'"),
        ({"method": "sgd", "zeta": 0.1}, "zeta must be 0 for method 'sgd', which has no gamma; got 0.1"),
        ({"method": "sgd", "length": 2.0}, "Got length 2.0 for method 'sgd'"),
        ({"length": 0.0}, r"length must lie in \(0, inf\)"),
    ],
)
def test_wrong_input(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        learning_dynamics(**{"times": [1], "learning_rate": 0.5, **settings})
