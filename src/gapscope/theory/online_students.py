"""Online SGD of one-layer students, simulated at finite N (see `learning_dynamics`)."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from gapscope.base.errors import check_range
from gapscope.base.randomness import resolve_numpy_generator
from gapscope.theory.dynamics import Method, Trajectory, check_method, checked_times, start_length
from gapscope.theory.order_parameters import Student, activity, checked_order_parameters
from gapscope.theory.student_steps import Gains, Weights, activate, pre_activations, steps
from gapscope.theory.teacher_students import draw_teachers

_BLOCK = 64


def _at_overlap(
    teachers: Float[np.ndarray, "k n"], overlap: float, length: float, generator: np.random.Generator
) -> Weights:
    """Sample vectors of squared norm N length^2 with an exact cosine with the teacher."""
    size = teachers.shape[1]
    across = generator.standard_normal(teachers.shape)
    across -= np.sum(across * teachers, axis=1, keepdims=True) / size * teachers
    across *= np.sqrt(size) / np.linalg.norm(across, axis=1, keepdims=True)
    return length * (overlap * teachers + np.sqrt(1 - overlap**2) * across)


def _order_parameters(
    method: Method, weights: Weights, gains: Gains, teachers: Float[np.ndarray, "k n"]
) -> Float[np.ndarray, "3 k"]:
    lengths = np.linalg.norm(weights, axis=1) / np.sqrt(weights.shape[1])
    overlaps = np.sum(weights * teachers, axis=1) / weights.shape[1] / lengths
    return np.stack([lengths if method == "sgd" else gains, overlaps, lengths])


def simulate_learning(
    times: ArrayLike,
    *,
    learning_rate: float,
    method: Method = "weight_norm",
    student: Student = "relu",
    zeta: float = 0.0,
    gamma: float = 0.5,
    overlap: float = 0.2,
    length: float | None = None,
    n_inputs: int = 1000,
    students: int = 6,
    generator: np.random.Generator | None = None,
) -> Trajectory:
    r"""Simulate gain, overlap and length of students under online SGD at finite N.

    Every step samples one new x ~ N(0, I/N), the teacher labels it without noise, and w moves by $\eta$ and $\gamma$
    by $\eta/N$ times the downhill gradient of half of [full square + $\zeta\gamma^2$] (eq. 5 with its step of
    $\gamma$ corrected: with the printed $\eta$ the gain jumps about at random and no equation (6) follows). All
    settings as for `learning_dynamics`.

    Args:
        times: Increasing times t = (seen samples)/N at which to report; cost: N max(times) steps of O(N) per student.
        gamma: Gain at time 0.
        overlap: Overlap R at time 0, met exactly.
        length: Length L at time 0, None for 1 (weight norm) or gamma (SGD).
        n_inputs: N.

    >>> path = simulate_learning([0.0, 1.0], learning_rate=0.5, n_inputs=50, students=3)
    >>> path.gamma.shape, path.gamma[0].tolist()
    ((2, 3), [0.5, 0.5, 0.5])
    """
    check_method(method, zeta)
    check_range("learning_rate", learning_rate, 0, low_open=True)
    check_range("n_inputs", n_inputs, 2)
    check_range("students", students, 1)
    checked_order_parameters(gamma, overlap)
    activity(student)
    moments = checked_times(times)
    generator = resolve_numpy_generator(generator)
    teachers = draw_teachers(n_inputs, students, generator)
    weights = _at_overlap(teachers, overlap, start_length(method, gamma, length), generator)
    gains = np.full(students, gamma)
    path, done = np.empty((3, moments.size, students)), 0
    for row, stop in enumerate(np.rint(moments * n_inputs).astype(int)):
        while done < stop:
            block = min(_BLOCK, stop - done)
            inputs = generator.standard_normal((block, students, 1, n_inputs)) / np.sqrt(n_inputs)
            for x in inputs:
                labels = activate(pre_activations(x, teachers), student)
                turn, growth = steps(method, weights, gains, x, labels, student)
                weights = weights + learning_rate * turn
                gains = gains + learning_rate * (growth - zeta / n_inputs * gains)
            done += block
        path[:, row] = _order_parameters(method, weights, gains, teachers)
    return Trajectory(times=moments, gamma=path[0], overlap=path[1], length=path[2])
