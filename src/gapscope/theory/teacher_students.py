"""Finite teacher-student tasks, and exact least-squares students."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from gapscope.base.errors import check_range
from gapscope.base.randomness import resolve_numpy_generator
from gapscope.theory.statistical_mechanics import Student, activity, generalization_error


@dataclass(frozen=True, eq=False)
class TeacherTask:
    """Training data of several independent linear teachers.

    Inputs are x ~ N(0, I/N), one set per teacher; targets are w*^T x + s with s ~ N(0, S); teachers w* have squared
    norm N.

    Attributes:
        inputs: Inputs of P samples per teacher.
        targets: Noisy outputs of the teachers.
        teachers: One vector per teacher.
    """

    inputs: Float[np.ndarray, "k p n"]
    targets: Float[np.ndarray, "k p"]
    teachers: Float[np.ndarray, "k n"]


@dataclass(frozen=True, eq=False)
class StudentWeights:
    """Students as effective weight vectors w with output g(w^T x).

    Each student has one vector and one teacher. Checkpoints, if any, are the leading axis.

    Attributes:
        weights: Effective weight vectors w.
        teachers: Teacher of each student.
        student: Activation g of the student, "relu" or "linear"; the teacher is linear.
    """

    weights: Float[np.ndarray, "*checkpoints k n"]
    teachers: Float[np.ndarray, "k n"]
    student: Student

    @property
    def gamma(self) -> Float[np.ndarray, "*checkpoints k"]:
        """Gain: length of the weights over sqrt(N)."""
        return np.linalg.norm(self.weights, axis=-1) / np.sqrt(self.weights.shape[-1])

    @property
    def overlap(self) -> Float[np.ndarray, "*checkpoints k"]:
        """Cosine R between student and teacher (0 for zero weights)."""
        lengths = np.linalg.norm(self.weights, axis=-1) * np.linalg.norm(self.teachers, axis=-1)
        products = np.sum(self.weights * self.teachers, axis=-1)
        return np.clip(products / np.where(lengths == 0, 1, lengths), -1, 1)

    @property
    def generalization_error(self) -> Float[np.ndarray, "*checkpoints k"]:
        """Mean squared error on fresh noise-free targets, exact given the weights."""
        return np.asarray(generalization_error(self.gamma, self.overlap, student=self.student))


def draw_teachers(
    n_inputs: int, count: int, generator: np.random.Generator
) -> Float[np.ndarray, "k n"]:
    """Sample teacher vectors of squared norm N, uniform in direction."""
    vectors = generator.standard_normal((count, n_inputs))
    return vectors * (np.sqrt(n_inputs) / np.linalg.norm(vectors, axis=1, keepdims=True))


def draw_teacher_task(
    alpha: float,
    *,
    n_inputs: int = 4096,
    noise_variance: float = 0.25,
    students: int = 1,
    generator: np.random.Generator | None = None,
) -> TeacherTask:
    r"""Sample training data of several linear teachers (sec. 4).

    There are $P = \alpha N$ noisy samples $y = w^{*\top} x + s$ per teacher.

    Args:
        alpha: P/N, positive; P is rounded and at least 1.
        n_inputs: N, 4096 in the paper's figure. Memory: 8 * students * alpha * N^2 bytes.
        noise_variance: Variance S of the label noise.
        students: Number of independent students.
        generator: Source of random numbers; None for the same ones at every call.

    >>> draw_teacher_task(0.5, n_inputs=8, students=3).inputs.shape
    (3, 4, 8)
    """
    check_range("alpha", alpha, 0, low_open=True)
    check_range("noise_variance", noise_variance, 0)
    check_range("n_inputs", n_inputs, 1)
    check_range("students", students, 1)
    generator = resolve_numpy_generator(generator)
    teachers = draw_teachers(n_inputs, students, generator)
    samples = max(1, round(alpha * n_inputs))
    inputs = generator.standard_normal((students, samples, n_inputs)) / np.sqrt(n_inputs)
    noise = np.sqrt(noise_variance) * generator.standard_normal((students, samples))
    return TeacherTask(inputs, np.einsum("kpn,kn->kp", inputs, teachers) + noise, teachers)


def _ridge(
    inputs: Float[np.ndarray, "p n"], targets: Float[np.ndarray, " p"], ridge: float
) -> Float[np.ndarray, " n"]:
    if ridge == 0:
        return np.linalg.lstsq(inputs, targets)[0]
    samples, size = inputs.shape
    if samples < size:  # (X^T X + r I)^-1 X^T = X^T (X X^T + r I)^-1: solve the smaller system
        return inputs.T @ np.linalg.solve(inputs @ inputs.T + ridge * np.eye(samples), targets)
    return np.linalg.solve(inputs.T @ inputs + ridge * np.eye(size), inputs.T @ targets)


def least_squares_students(
    task: TeacherTask, *, student: Student = "linear", zeta: float = 0.0
) -> StudentWeights:
    r"""Compute the converged students by ridge regression (least squares at zeta = 0).

    If training of a linear student converges, vanilla SGD from weights 0 ends here with zeta = 0, and weight norm with
    gamma decay with the same zeta. Exact: with $\|w\|^2 = N\gamma^2$ the loss $\frac1N\sum + \zeta\gamma^2$ is ridge
    regression with the constant zeta. A ReLU student is fitted to its positive targets only, as in
    `student_generalization`; gradient descent on it ends elsewhere (see there).

    Args:
        task: Training data of several teachers.
        student: Activation g of the student, "relu" or "linear"; the teacher is linear.
        zeta: Constant of the ridge regression, 0 or larger.

    >>> task = draw_teacher_task(2.0, n_inputs=8, noise_variance=0.0)
    >>> bool(np.allclose(least_squares_students(task).weights, task.teachers))
    True
    """
    activity(student)
    check_range("zeta", zeta, 0)
    weights = []
    for inputs, targets in zip(task.inputs, task.targets, strict=True):
        rows: Bool[np.ndarray, " p"] = targets > (0 if student == "relu" else -np.inf)
        weights.append(_ridge(inputs[rows], targets[rows], zeta))
    return StudentWeights(np.stack(weights), task.teachers, student)
