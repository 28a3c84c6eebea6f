"""Simulated online SGD against the equations, and the finite-N spread that the docstring states."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gapscope.base.errors import InvalidInput
from gapscope.theory.dynamics import learning_dynamics
from gapscope.theory.student_training import simulate_learning

SETTINGS: list[dict[str, Any]] = [
    {"learning_rate": 0.5, "zeta": 0.25},
    {"learning_rate": 0.5},
    {"learning_rate": 0.5, "method": "sgd"},
    {"learning_rate": 1.5, "zeta": 0.25, "student": "linear"},
    {"learning_rate": 1.5, "student": "linear"},
    {"learning_rate": 1.5, "method": "sgd", "student": "linear"},
]


@pytest.mark.thorough
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize(
    "size", [500, pytest.param(1000, marks=pytest.mark.slow), pytest.param(2000, marks=pytest.mark.slow)]
)
def test_mean_of_six_students_follows_the_equations(settings: dict[str, Any], size: int) -> None:
    times = np.arange(0, 17)
    simulated = simulate_learning(times, n_inputs=size, students=6, generator=np.random.default_rng(0), **settings)
    solved = learning_dynamics(times, **settings)
    for name in ("gamma", "overlap", "length"):
        np.testing.assert_allclose(getattr(simulated, name).mean(axis=1), getattr(solved, name), atol=0.03)


@pytest.mark.thorough
def test_single_students_spread_less_in_more_inputs() -> None:
    times = np.arange(1, 9)
    solved = learning_dynamics(times, learning_rate=0.5, zeta=0.25)
    spread = []
    for size in (64, 1024):
        generator = np.random.default_rng(1)
        path = simulate_learning(times, learning_rate=0.5, zeta=0.25, n_inputs=size, students=8, generator=generator)
        spread.append(np.sqrt(np.mean((path.gamma - solved.gamma[:, None]) ** 2)))
    assert 2.5 < spread[0] / spread[1] < 6.5, "1 / sqrt(N) is a factor of 4"


def test_start_is_exact() -> None:
    path = simulate_learning([0, 1], learning_rate=0.1, gamma=0.7, overlap=-0.3, length=2.0, n_inputs=30, students=3)
    np.testing.assert_allclose(path.gamma[0], 0.7)
    np.testing.assert_allclose(path.overlap[0], -0.3)
    np.testing.assert_allclose(path.length[0], 2.0)


def test_same_generator_same_students() -> None:
    first, second = (
        simulate_learning([0.5, 1], learning_rate=0.5, n_inputs=20, students=2, generator=np.random.default_rng(3))
        for _ in range(2)
    )
    np.testing.assert_array_equal(first.overlap, second.overlap)


def test_wrong_input() -> None:
    with pytest.raises(InvalidInput, match=r"n_inputs must lie in \[2, inf\); got 1"):
        simulate_learning([1], learning_rate=0.5, n_inputs=1)
    with pytest.raises(InvalidInput, match="times must increase"):
        simulate_learning([2, 1], learning_rate=0.5)
    with pytest.raises(InvalidInput, match="student must be one of"):
        simulate_learning([1], learning_rate=0.5, student="tanh")  # type: ignore[arg-type]
