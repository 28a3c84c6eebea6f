"""Students: steps, online learning, training and least squares against exact results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gapscope.base.errors import InvalidInput
from gapscope.theory.dynamics import learning_dynamics
from gapscope.theory.fixed_points import batch_norm_gamma
from gapscope.theory.statistical_mechanics import Student
from gapscope.theory.student_training import (
    TrainingMethod,
    activate,
    pre_activations,
    root_mean_square,
    simulate_learning,
    steps,
    train_students,
)
from gapscope.theory.teacher_students import (
    StudentWeights,
    TeacherTask,
    draw_teacher_task,
    least_squares_students,
)


def test_task_has_the_stated_shapes_and_moments() -> None:
    task = draw_teacher_task(
        1.5, n_inputs=200, noise_variance=0.25, students=4, generator=np.random.default_rng(0)
    )
    assert task.inputs.shape == (4, 300, 200) and task.targets.shape == (4, 300)
    np.testing.assert_allclose(np.sum(task.teachers**2, axis=1), 200)
    assert np.var(task.inputs) * 200 == pytest.approx(1, rel=0.01)
    noise = task.targets - np.einsum("kpn,kn->kp", task.inputs, task.teachers)
    assert np.var(noise) == pytest.approx(0.25, rel=0.15)


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
    weights = least_squares_students(task, zeta=zeta).weights
    residuals = task.targets - np.einsum("kpn,kn->kp", task.inputs, weights)
    slopes = np.einsum("kpn,kp->kn", task.inputs, residuals) - zeta * weights
    np.testing.assert_allclose(slopes, 0, atol=1e-12)


def test_relu_students_fit_positive_targets_only() -> None:
    task = draw_teacher_task(1.0, n_inputs=20, generator=np.random.default_rng(0))
    outputs = task.inputs[0] @ least_squares_students(task, student="relu").weights[0]
    positive = task.targets[0] > 0
    np.testing.assert_allclose(outputs[positive], task.targets[0][positive], atol=1e-10)
    assert not np.allclose(outputs[~positive], task.targets[0][~positive], atol=0.1)


SIZE, BATCH = 5, 7


def _loss(
    method: TrainingMethod,
    parameters: np.ndarray,
    inputs: np.ndarray,
    targets: np.ndarray,
    student: Student,
) -> float:
    weights, gain = parameters[None, :-1], parameters[-1]
    hidden = pre_activations(inputs, weights)
    if method == "weight_norm":
        hidden = gain * np.sqrt(SIZE) * hidden / np.linalg.norm(weights)
    elif method == "batch_norm":
        hidden = gain * hidden / root_mean_square(hidden)
    return float(np.sum((targets - activate(hidden, student)) ** 2) / 2)


@pytest.mark.parametrize("method", ["sgd", "weight_norm", "batch_norm"])
@pytest.mark.parametrize("student", ["linear", "relu"])
def test_steps_are_the_downhill_gradient(method: TrainingMethod, student: Student) -> None:
    generator = np.random.default_rng(0)
    inputs, targets = (
        generator.standard_normal((1, BATCH, SIZE)),
        generator.standard_normal((1, BATCH)),
    )
    parameters = np.append(generator.standard_normal(SIZE), 0.8)
    differences = [
        _loss(method, parameters + step, inputs, targets, student)
        - _loss(method, parameters - step, inputs, targets, student)
        for step in 1e-6 * np.eye(SIZE + 1)
    ]
    turn, growth = steps(method, parameters[None, :-1], parameters[-1:], inputs, targets, student)
    result = np.append(turn[0], SIZE * growth[0])
    np.testing.assert_allclose(result, -np.array(differences) / 2e-6, atol=1e-7)


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
    "size",
    [500, pytest.param(1000, marks=pytest.mark.slow), pytest.param(2000, marks=pytest.mark.slow)],
)
def test_mean_of_six_students_follows_the_equations(settings: dict[str, Any], size: int) -> None:
    times = np.arange(0, 17)
    simulated = simulate_learning(
        times, n_inputs=size, students=6, generator=np.random.default_rng(0), **settings
    )
    solved = learning_dynamics(times, **settings)
    for name in ("gamma", "overlap", "length"):
        np.testing.assert_allclose(
            getattr(simulated, name).mean(axis=1), getattr(solved, name), atol=0.03
        )


def test_start_is_exact() -> None:
    path = simulate_learning(
        [0, 1], learning_rate=0.1, gamma=0.7, overlap=-0.3, length=2.0, n_inputs=30, students=3
    )
    np.testing.assert_allclose(path.gamma[0], 0.7)
    np.testing.assert_allclose(path.overlap[0], -0.3)
    np.testing.assert_allclose(path.length[0], 2.0)


def _task(alpha: float, size: int, students: int = 4, **options: Any) -> TeacherTask:
    return draw_teacher_task(
        alpha, n_inputs=size, students=students, generator=np.random.default_rng(0), **options
    )


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
def test_weight_norm_with_decay_is_ridge_regression(alpha: float) -> None:
    task = _task(alpha, 40)
    exact = least_squares_students(task, zeta=0.25).weights
    result = train_students(
        task, method="weight_norm", epochs=2000, anneal=False, zeta=0.25
    ).weights
    assert np.linalg.norm(result - exact) < 1e-12 * np.linalg.norm(exact)
    if alpha == 2.0:  # also in batches
        options: dict[str, Any] = {"epochs": 1000, "batch_size": 16, "generator": _seeded()}
        in_batches = train_students(task, method="weight_norm", zeta=0.25, **options).weights
        np.testing.assert_allclose(in_batches, exact, atol=0.03)


@pytest.mark.parametrize("alpha", [0.5, 3.0])
def test_sgd_ends_at_the_shortest_least_squares(alpha: float) -> None:
    task = _task(alpha, 40)
    result = train_students(task, method="sgd", epochs=4000, anneal=False).weights
    np.testing.assert_allclose(result, least_squares_students(task).weights, atol=1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize("student", ["linear", "relu"])
def test_batch_norm_shrinks_its_outputs_by_the_expected_batch_deviation(student: Student) -> None:
    """Many noise-free samples: the teacher's direction, and a gain of E[sigma_B]."""
    task = _task(40.0, 20, students=8, noise_variance=0.0)
    settings: dict[str, Any] = {"batch_size": 16, "epochs": 300, "learning_rate": 0.1}
    students = train_students(
        task, method="batch_norm", student=student, generator=_seeded(), **settings
    )
    assert np.all(students.overlap > 0.998)
    outputs = np.einsum("kpn,kn->kp", task.inputs, students.weights)
    scale = np.sqrt(np.mean(outputs**2, axis=1) / np.mean(task.targets**2, axis=1))
    assert scale.mean() == pytest.approx(float(batch_norm_gamma(16)), abs=4e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("alpha", [0.5, 1.25])
def test_converged_batch_norm_is_least_squares_not_ridge(alpha: float) -> None:
    """Real batch norm on few noisy samples ends at shrunk least squares, not as in Fig. 1a."""
    task = _task(alpha, 100)
    least, ridge = least_squares_students(task), least_squares_students(task, zeta=1 / 64)
    students = train_students(
        task, method="batch_norm", epochs=4000, batch_size=32, generator=_seeded()
    )
    lengths = np.linalg.norm(students.weights, axis=1) * np.linalg.norm(least.weights, axis=1)
    assert np.all(np.sum(students.weights * least.weights, axis=1) / lengths > 0.99)
    to_least = abs(students.generalization_error.mean() - least.generalization_error.mean())
    assert to_least < 0.5 * abs(
        students.generalization_error.mean() - ridge.generalization_error.mean()
    )


def test_checkpoints_lead_the_shape_and_do_not_change_the_end() -> None:
    task = _task(1.0, 20)
    settings: dict[str, Any] = {"method": "batch_norm", "epochs": 5, "batch_size": 8}
    path = train_students(task, checkpoints=[0, 2, 5], generator=_seeded(), **settings)
    end = train_students(task, generator=_seeded(), **settings)
    assert path.weights.shape == (3, 4, 20) and path.gamma.shape == (3, 4)
    np.testing.assert_array_equal(path.weights[-1], end.weights)
    correlation = np.einsum("kpn,kp->kn", task.inputs, task.targets)
    cosine = np.sum(path.weights[0] * correlation, axis=1) / np.linalg.norm(path.weights[0], axis=1)
    np.testing.assert_allclose(cosine, np.linalg.norm(correlation, axis=1))


def _seeded() -> np.random.Generator:
    return np.random.default_rng(5)


def test_a_relu_student_without_positive_targets_cannot_start_along_them() -> None:
    task = _task(1.0, 3, students=1)
    negative = TeacherTask(task.inputs, -np.abs(task.targets), task.teachers)
    with pytest.raises(InvalidInput, match="1 of 1"):
        train_students(negative, method="sgd", student="relu", epochs=1)
