"""Sampled tasks have the stated distribution, and exact students solve them."""

from __future__ import annotations

import numpy as np
import pytest

from gapscope.base.errors import InvalidInput
from gapscope.theory.statistical_mechanics import Student
from gapscope.theory.teacher_students import (
    StudentWeights,
    draw_teacher_task,
    least_squares_students,
)


def test_task_has_the_stated_shapes_and_moments() -> None:
    task = draw_teacher_task(1.5, n_inputs=200, noise_variance=0.25, students=4, generator=np.random.default_rng(0))
    assert task.inputs.shape == (4, 300, 200) and task.targets.shape == (4, 300)
    np.testing.assert_allclose(np.sum(task.teachers**2, axis=1), 200)
    assert np.var(task.inputs) * 200 == pytest.approx(1, rel=0.01)
    noise = task.targets - np.einsum("kpn,kn->kp", task.inputs, task.teachers)
    assert np.var(noise) == pytest.approx(0.25, rel=0.15)


@pytest.mark.parametrize("student", ["linear", "relu"])
def test_generalization_error_equals_that_on_fresh_samples(student: Student) -> None:
    task = draw_teacher_task(0.8, n_inputs=30, students=2, generator=np.random.default_rng(1))
    students = least_squares_students(task, student=student)
    fresh = np.random.default_rng(2).standard_normal((200_000, 30)) / np.sqrt(30)
    for weights, teacher, expected in zip(students.weights, task.teachers, students.generalization_error, strict=True):
        outputs = fresh @ weights
        outputs = np.maximum(outputs, 0) if student == "relu" else outputs
        assert np.mean((fresh @ teacher - outputs) ** 2) == pytest.approx(expected, rel=0.02)


def test_order_parameters_of_known_weights() -> None:
    teacher = np.array([[2.0, 0.0, 0.0, 0.0]])
    weights = np.array([[[0.0, 3.0, 0.0, 0.0]], [[1.0, 1.0, 0.0, 0.0]], [[0.0, 0.0, 0.0, 0.0]]])
    students = StudentWeights(weights, teacher, "linear")
    np.testing.assert_allclose(students.gamma, [[1.5], [np.sqrt(0.5)], [0]])
    np.testing.assert_allclose(students.overlap, [[0], [np.sqrt(0.5)], [0]])
    np.testing.assert_allclose(students.generalization_error, [[3.25], [0.5], [1]])


@pytest.mark.parametrize("alpha", [0.5, 2.0])
@pytest.mark.parametrize("zeta", [0.0, 0.3])
def test_least_squares_students_solve_the_normal_equations(alpha: float, zeta: float) -> None:
    task = draw_teacher_task(alpha, n_inputs=20, students=3, generator=np.random.default_rng(0))
    weights = least_squares_students(task, zeta=zeta, loss_scale="samples").weights
    residuals = task.targets - np.einsum("kpn,kn->kp", task.inputs, weights)
    slopes = np.einsum("kpn,kp->kn", task.inputs, residuals) - alpha * zeta * weights
    np.testing.assert_allclose(slopes, 0, atol=1e-12)


def test_shortest_solution_lies_in_the_span_of_the_inputs() -> None:
    task = draw_teacher_task(0.5, n_inputs=20, generator=np.random.default_rng(0))
    weights = least_squares_students(task).weights[0]
    inside = np.linalg.lstsq(task.inputs[0].T, weights)[0] @ task.inputs[0]
    np.testing.assert_allclose(inside, weights, atol=1e-12)


def test_relu_students_fit_positive_targets_only() -> None:
    task = draw_teacher_task(1.0, n_inputs=20, generator=np.random.default_rng(0))
    fitted = task.inputs[0] @ least_squares_students(task, student="relu").weights[0]
    positive = task.targets[0] > 0
    np.testing.assert_allclose(fitted[positive], task.targets[0][positive], atol=1e-10)
    assert not np.allclose(fitted[~positive], task.targets[0][~positive], atol=0.1)


def test_wrong_input() -> None:
    with pytest.raises(InvalidInput, match=r"alpha must lie in \(0, inf\); got 0"):
        draw_teacher_task(0)
    with pytest.raises(InvalidInput, match="loss_scale must be one of"):
        least_squares_students(draw_teacher_task(1, n_inputs=4), loss_scale="batch")  # type: ignore[arg-type]
