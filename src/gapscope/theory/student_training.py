r"""One-layer students trained by SGD, weight norm or batch norm, online or on finite data.

Steps are negative gradients of half the sum of squares over a batch, with $\delta_j = g'(s_j)[y_j - g(s_j)]$.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from gapscope.base.errors import InvalidInput, check_choice, check_range
from gapscope.base.randomness import resolve_numpy_generator
from gapscope.theory.dynamics import (
    DIVERGED,
    Method,
    Trajectory,
    check_method,
    start_length,
    validate_times,
)
from gapscope.theory.statistical_mechanics import Student, activity, validate_order_parameters
from gapscope.theory.teacher_students import StudentWeights, TeacherTask, draw_teachers

TrainingMethod = Literal["sgd", "weight_norm", "batch_norm"]
Weights = Float[np.ndarray, "k n"]
Gains = Float[np.ndarray, " k"]
Inputs = Float[np.ndarray, "k m n"]
Targets = Float[np.ndarray, "k m"]


def pre_activations(inputs: Inputs, weights: Weights) -> Targets:
    """Return each student's w^T x on its own samples."""
    return np.matmul(inputs, weights[:, :, None])[:, :, 0]


def activate(pre_activation: Targets, student: Student) -> Targets:
    """Return the outputs g(s) of a student or a teacher."""
    if student == "relu":
        return np.maximum(pre_activation, 0)
    return pre_activation


def _delta(pre_activation: Targets, targets: Targets, student: Student) -> Targets:
    residual = targets - activate(pre_activation, student)
    if student == "relu":
        return residual * (pre_activation > 0)
    return residual


def _weighted_inputs(inputs: Inputs, factors: Targets) -> Weights:
    """Return sum_j factor_j x_j of each student."""
    return np.matmul(factors[:, None, :], inputs)[:, 0, :]


def root_mean_square(values: Targets) -> Float[np.ndarray, "k 1"]:
    """Return the root mean square over the samples of each student."""
    return np.sqrt(np.mean(values**2, axis=1, keepdims=True))


def steps(
    method: TrainingMethod,
    weights: Weights,
    gains: Gains,
    inputs: Inputs,
    targets: Targets,
    student: Student,
) -> tuple[Weights, Gains]:
    r"""Compute the descent directions of weights and gains (per input) for half the squares.

    SGD: $\sum_j \delta_j x_j$ and no gain. Weight norm (eq. 5):
    $\frac{\sqrt N\gamma}{\|w\|}\sum_j \delta_j (x_j - \frac{w^\top x_j}{\|w\|^2} w)$ and $\frac 1N\sum_j \delta_j
    \sqrt N w^\top x_j/\|w\|$. Batch norm with $u_j = w^\top x_j/\sigma_B$, $\sigma_B$ the root mean square over the
    batch: $\frac{\gamma}{\sigma_B}\sum_j(\delta_j - u_j\overline{\delta u})x_j$ and $\frac 1N\sum_j \delta_j u_j$.
    """
    size = weights.shape[1]
    hidden = pre_activations(inputs, weights)
    if method == "sgd":
        return _weighted_inputs(inputs, _delta(hidden, targets, student)), np.zeros_like(gains)
    gain = gains[:, None]
    if method == "batch_norm":
        scale = root_mean_square(hidden)
        u = hidden / scale
    else:
        scale = np.linalg.norm(weights, axis=1, keepdims=True)
        u = np.sqrt(size) * hidden / scale
    delta = _delta(gain * u, targets, student)
    growth = np.sum(delta * u, axis=1) / size
    if method == "batch_norm":
        # d sigma_B / d w = mean_j(u_j x_j), so the gradient through sigma_B subtracts u_j mean(delta u)
        through_scale = delta - u * np.mean(delta * u, axis=1, keepdims=True)
        return gain / scale * _weighted_inputs(inputs, through_scale), growth
    radial = np.sum(delta * hidden, axis=1, keepdims=True) / scale**2
    turn = np.sqrt(size) * gain / scale * (_weighted_inputs(inputs, delta) - radial * weights)
    return turn, growth


Parameters = Float[np.ndarray, "k n_plus_1"]  # weights, then the gain


def _start(task: TeacherTask, method: TrainingMethod, student: Student) -> Parameters:
    # Descent never changes the part of w outside the span of the data: a start along the correlation lets linear
    # students reach the shortest solution. SGD starts short, because ReLU keeps the part of w at which no sample is
    # active.
    length = 1.0
    if method == "sgd":
        length = 0.01
    # sum_j g(y_j) x_j per student
    weights = np.einsum("kpn,kp->kn", task.inputs, activate(task.targets, student))
    norms = np.linalg.norm(weights, axis=1, keepdims=True)
    if not norms.all():
        raise InvalidInput(
            f"ReLU students need a positive target to start from; {np.sum(norms == 0)} of {len(norms)} have none. "
            "Use more samples."
        )
    weights *= length * np.sqrt(weights.shape[1]) / norms
    return np.column_stack([weights, np.ones(len(weights))])


def _effective_weights(
    method: TrainingMethod, parameters: Parameters, task: TeacherTask
) -> Weights:
    weights = parameters[:, :-1]
    gains = parameters[:, -1:]
    if method == "sgd":
        return weights.copy()
    if method == "weight_norm":
        return (
            gains
            * np.sqrt(weights.shape[1])
            * weights
            / np.linalg.norm(weights, axis=1, keepdims=True)
        )
    return gains * weights / root_mean_square(pre_activations(task.inputs, weights))


def _batches(
    task: TeacherTask, batch: int, generator: np.random.Generator
) -> Iterator[TeacherTask]:
    count, samples, _ = task.inputs.shape
    if batch == samples:
        yield task
        return
    order: Int[np.ndarray, "k p"] = generator.permuted(
        np.tile(np.arange(samples), (count, 1)), axis=1
    )
    rows = np.arange(count)[:, None]
    for first in range(0, samples - batch + 1, batch):
        indices = order[:, first : first + batch]
        yield TeacherTask(task.inputs[rows, indices], task.targets[rows, indices], task.teachers)


def train_students(
    task: TeacherTask,
    *,
    method: TrainingMethod,
    epochs: int,
    student: Student = "linear",
    learning_rate: float = 0.5,
    batch_size: int | None = None,
    zeta: float = 0.0,
    anneal: bool = True,
    checkpoints: Sequence[int] | None = None,
    generator: np.random.Generator | None = None,
) -> StudentWeights:
    r"""Train one-layer students by gradient descent on finite data (sec. 4, Fig. 1).

    The loss is the full square over all samples, divided by N, plus $\zeta\gamma^2$. Training descends half of it,
    summed (not averaged) over a batch, with step $\eta' = \eta / (1 + \sqrt{M/N})^2$ for w and $\eta'/N$ for
    $\gamma$: this divides by the largest curvature of a batch of Gaussian inputs, so that $\eta < 2$ is stable. w
    starts along the correlation $\sum_j g(y_j) x_j$. Batch norm divides by the root mean square of its batch (without
    subtracting the mean, sec. 4), after training by that of the whole training set. Samples that do not fill a batch
    are skipped.

    Weight norm with decay ends at ridge regression, SGD at the shortest least squares. Real batch norm ends in the
    direction of least squares, not on the ridge curve of `batch_norm_zeta` as in Fig. 1a.

    Args:
        task: Training data of several teachers.
        method: "sgd" (vanilla), "weight_norm" (with gamma decay `zeta`) or "batch_norm" (real batch norm, no decay).
        epochs: Number of passes over the training data.
        student: Activation g of the student, "relu" or "linear"; the teacher's as well, or the teacher is linear.
        learning_rate: Learning rate eta, positive.
        batch_size: M; None for the whole training set at once.
        zeta: Gamma decay of the loss full square + $\zeta\gamma^2$, 0 or larger; 0 for SGD.
        anneal: Whether the learning rate decreases to 0 over the epochs as a cosine, or stays constant.
        checkpoints: Increasing epochs after which to save the weights (0: the start), the leading axis of the result;
            None for the end only.
        generator: Source of random numbers; None for the same ones at every call.

    Raises:
        InvalidInput: The learning rate diverges.

    >>> from gapscope.theory.teacher_students import draw_teacher_task
    >>> task = draw_teacher_task(3.0, n_inputs=8, noise_variance=0.0)
    >>> students = train_students(task, method="sgd", epochs=2000)
    >>> bool(students.generalization_error[0] < 1e-6)
    True
    """
    samples = task.inputs.shape[1]
    batch = samples
    if batch_size is not None:
        batch = batch_size
    saved_epochs = [epochs]
    if checkpoints is not None:
        saved_epochs = list(checkpoints)
    check_choice("method", method, get_args(TrainingMethod))
    check_range("epochs", epochs, 0)
    if not 1 <= batch <= samples:
        raise InvalidInput(
            f"batch_size must be in [1, {samples}], the number of samples; got {batch}. Lower it."
        )
    if method != "weight_norm" and zeta != 0:
        raise InvalidInput(
            f"zeta must be 0 for method {method!r}; got {zeta}. Gamma decay needs method 'weight_norm'."
        )
    is_inside = all(0 <= epoch <= epochs for epoch in saved_epochs)
    if not is_inside or any(later <= epoch for epoch, later in pairwise(saved_epochs)):
        raise InvalidInput(
            f"checkpoints must increase from 0 up to epochs = {epochs}; got {saved_epochs}."
        )
    check_range("learning_rate", learning_rate, 0, low_open=True)
    check_range("zeta", zeta, 0)
    activity(student)
    generator = resolve_numpy_generator(generator)
    decay = zeta * batch / samples
    peak = learning_rate / (1 + np.sqrt(batch / task.inputs.shape[2])) ** 2
    parameters = _start(task, method, student)
    weights_at = {0: _effective_weights(method, parameters, task)}
    for epoch in range(epochs):
        if anneal:
            rate = peak * (1 + np.cos(np.pi * epoch / epochs)) / 2
        else:
            rate = peak
        for part in _batches(task, batch, generator):
            weights = parameters[:, :-1]
            gains = parameters[:, -1]
            turn, growth = steps(method, weights, gains, part.inputs, part.targets, student)
            parameters = parameters + rate * np.column_stack([turn, growth - decay * gains])
        if not np.abs(parameters).max() < DIVERGED:
            raise InvalidInput(
                f"learning_rate must keep training finite; {learning_rate} diverged in epoch {epoch + 1}. Lower it."
            )
        if epoch + 1 in saved_epochs:
            weights_at[epoch + 1] = _effective_weights(method, parameters, task)
    weights = np.stack([weights_at[epoch] for epoch in saved_epochs])
    return StudentWeights(weights[0] if checkpoints is None else weights, task.teachers, student)


def _at_overlap(
    teachers: Float[np.ndarray, "k n"],
    overlap: float,
    length: float,
    generator: np.random.Generator,
) -> Weights:
    """Sample vectors of squared norm N length^2 with an exact cosine with the teacher."""
    # Gaussian vectors minus their projection on the teacher (of squared norm N) are orthogonal to it.
    size = teachers.shape[1]
    across = generator.standard_normal(teachers.shape)
    across -= np.sum(across * teachers, axis=1, keepdims=True) / size * teachers
    across *= np.sqrt(size) / np.linalg.norm(across, axis=1, keepdims=True)
    return length * (overlap * teachers + np.sqrt(1 - overlap**2) * across)


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

    Every step samples a new x ~ N(0, I/N), labelled by the teacher without noise. w moves by $\eta$ and $\gamma$ by
    $\eta/N$ times the negative gradient of half of [full square + $\zeta\gamma^2$] (eq. 5 with the step of $\gamma$
    corrected: equations (6) do not follow from the printed $\eta$). Settings as for `learning_dynamics`.

    Args:
        times: Increasing times t = samples/N at which to report; cost: N max(times) steps of O(N) per student.
        learning_rate: Learning rate eta, positive.
        method: "weight_norm" or "sgd".
        student: Activation g of the student, "relu" or "linear"; the teacher's as well, or the teacher is linear.
        zeta: Gamma decay of the loss full square + $\zeta\gamma^2$, 0 or larger; 0 for SGD.
        gamma: Gain of the student at time 0, 0 or larger.
        overlap: Cosine R between student and teacher at time 0, in [-1, 1].
        length: Length L of the trained vector at time 0; None for 1 (weight norm) or gamma (SGD).
        n_inputs: N.
        students: Number of independent students.
        generator: Source of random numbers; None for the same ones at every call.
    """
    check_method(method, zeta)
    check_range("learning_rate", learning_rate, 0, low_open=True)
    check_range("n_inputs", n_inputs, 2)
    validate_order_parameters(gamma, overlap)
    activity(student)
    moments = validate_times(times)
    generator = resolve_numpy_generator(generator)
    teachers = draw_teachers(n_inputs, students, generator)
    weights = _at_overlap(teachers, overlap, start_length(method, gamma, length), generator)
    gains = np.full(students, gamma)
    path = np.empty((3, moments.size, students))
    n_steps = 0
    for row, stop in enumerate(np.rint(moments * n_inputs).astype(int)):
        while n_steps < stop:
            # random numbers of so many steps are sampled at once
            block = min(64, stop - n_steps)
            inputs = generator.standard_normal((block, students, 1, n_inputs)) / np.sqrt(n_inputs)
            for x in inputs:
                labels = activate(pre_activations(x, teachers), student)
                turn, growth = steps(method, weights, gains, x, labels, student)
                weights = weights + learning_rate * turn
                gains = gains + learning_rate * (growth - zeta / n_inputs * gains)
            n_steps += block
        lengths = np.linalg.norm(weights, axis=1) / np.sqrt(n_inputs)
        overlaps = np.sum(weights * teachers, axis=1) / n_inputs / lengths
        path[:, row] = lengths if method == "sgd" else gains, overlaps, lengths
    return Trajectory(moments, *path)
