r"""One-layer students trained by SGD, weight norm or batch norm, online or on finite data.

Steps are gradients of half the sum of squares over the given samples, downhill; $\delta_j = g'(s_j)[y_j - g(s_j)]$.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from gapscope.base.errors import InvalidInput, check_choice, check_range
from gapscope.base.randomness import resolve_numpy_generator
from gapscope.theory.dynamics import LossScale, Method, Trajectory, check_method, checked_times, start_length
from gapscope.theory.statistical_mechanics import Student, activity, checked_order_parameters
from gapscope.theory.teacher_students import StudentWeights, TeacherTask, draw_teachers, ridge_constant

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
    return np.maximum(pre_activation, 0) if student == "relu" else pre_activation


def _output_gradient(pre_activation: Targets, targets: Targets, student: Student) -> Targets:
    residual = targets - activate(pre_activation, student)
    return residual * (pre_activation > 0) if student == "relu" else residual


def _weight_gradient(inputs: Inputs, pull: Targets) -> Weights:
    return np.matmul(pull[:, None, :], inputs)[:, 0, :]


def root_mean_square(values: Targets) -> Float[np.ndarray, "k 1"]:
    """Return the root mean square over the samples of each student."""
    return np.sqrt(np.mean(values**2, axis=1, keepdims=True))


def steps(
    method: TrainingMethod, weights: Weights, gains: Gains, inputs: Inputs, targets: Targets, student: Student
) -> tuple[Weights, Gains]:
    r"""Compute the descent directions of weights and gains (per input) for half the squares.

    SGD: $\sum_j \delta_j x_j$ and no gain. Weight norm (eq. 5):
    $\frac{\sqrt N\gamma}{\|w\|}\sum_j \delta_j (x_j - \frac{w^\top x_j}{\|w\|^2} w)$ and $\frac 1N\sum_j \delta_j
    \sqrt N w^\top x_j/\|w\|$. Batch norm with $u_j = w^\top x_j/\sigma_B$, $\sigma_B$ the root mean square over the
    given batch: $\frac{\gamma}{\sigma_B}\sum_j(\delta_j - u_j\overline{\delta u})x_j$ and $\frac 1N\sum_j \delta_j
    u_j$.
    """
    size = weights.shape[1]
    hidden = pre_activations(inputs, weights)
    if method == "sgd":
        return _weight_gradient(inputs, _output_gradient(hidden, targets, student)), np.zeros_like(gains)
    gain = gains[:, None]
    if method == "batch_norm":
        scale = root_mean_square(hidden)
        normed = hidden / scale
        pull = _output_gradient(gain * normed, targets, student)
        through = pull - normed * np.mean(pull * normed, axis=1, keepdims=True)
        return gain / scale * _weight_gradient(inputs, through), np.sum(pull * normed, axis=1) / size
    lengths = np.linalg.norm(weights, axis=1, keepdims=True)
    normed = np.sqrt(size) * hidden / lengths
    pull = _output_gradient(gain * normed, targets, student)
    radial = np.sum(pull * hidden, axis=1, keepdims=True) / lengths**2
    turn = np.sqrt(size) * gain / lengths * (_weight_gradient(inputs, pull) - radial * weights)
    return turn, np.sum(pull * normed, axis=1) / size


_DIVERGED = 1e9
Parameters = Float[np.ndarray, "k n_plus_1"]


def _check(task: TeacherTask, method: str, batch: int, epochs: int, zeta: float, checkpoints: Sequence[int]) -> None:
    check_choice("method", method, ("sgd", "weight_norm", "batch_norm"))
    check_range("epochs", epochs, 0)
    samples = task.inputs.shape[1]
    if not 1 <= batch <= samples:
        raise InvalidInput(f"batch_size must be in [1, {samples}], the number of samples; got {batch}. Lower it.")
    if method != "weight_norm" and zeta != 0:
        raise InvalidInput(f"zeta must be 0 for method {method!r}; got {zeta}. Gamma decay needs method 'weight_norm'.")
    inside = all(0 <= epoch <= epochs for epoch in checkpoints)
    if not inside or any(later <= epoch for epoch, later in pairwise(checkpoints)):
        raise InvalidInput(f"checkpoints must increase within [0, {epochs}]; got {list(checkpoints)}. Or raise epochs.")


def _start(task: TeacherTask, method: TrainingMethod, student: Student) -> Parameters:
    # Along the correlation linear students reach the shortest solution: what lies outside the span of the data is never
    # unlearned. SGD starts short, as a ReLU student keeps what a long start puts where no sample is active.
    length = 0.01 if method == "sgd" else 1.0
    weights = np.einsum("kpn,kp->kn", task.inputs, activate(task.targets, student))
    norms = np.linalg.norm(weights, axis=1, keepdims=True)
    if not norms.all():
        raise InvalidInput(
            f"Every ReLU student must have a positive target to start from; {np.sum(norms == 0)} of {len(norms)} have "
            "none. Use more samples."
        )
    weights *= length * np.sqrt(weights.shape[1]) / norms
    return np.column_stack([weights, np.ones(len(weights))])


def _effective(method: TrainingMethod, parameters: Parameters, task: TeacherTask) -> Weights:
    weights, gains = parameters[:, :-1], parameters[:, -1:]
    if method == "sgd":
        return weights.copy()
    if method == "weight_norm":
        return gains * np.sqrt(weights.shape[1]) * weights / np.linalg.norm(weights, axis=1, keepdims=True)
    return gains * weights / root_mean_square(pre_activations(task.inputs, weights))


def _batches(task: TeacherTask, batch: int, generator: np.random.Generator) -> Iterator[TeacherTask]:
    count, samples, _ = task.inputs.shape
    if batch == samples:
        yield task
        return
    order: Int[np.ndarray, "k p"] = generator.permuted(np.tile(np.arange(samples), (count, 1)), axis=1)
    rows = np.arange(count)[:, None]
    for first in range(0, samples - batch + 1, batch):
        chosen = order[:, first : first + batch]
        yield TeacherTask(task.inputs[rows, chosen], task.targets[rows, chosen], task.teachers)


def train_students(
    task: TeacherTask,
    *,
    method: TrainingMethod,
    epochs: int,
    student: Student = "linear",
    learning_rate: float = 0.5,
    batch_size: int | None = None,
    zeta: float = 0.0,
    loss_scale: LossScale = "inputs",
    anneal: bool = True,
    checkpoints: Sequence[int] | None = None,
    generator: np.random.Generator | None = None,
) -> StudentWeights:
    r"""Train one-layer students by gradient descent on finite data (sec. 4, Fig. 1).

    The loss is the full square over all samples divided by N or P plus $\zeta\gamma^2$; half of it is descended,
    summed (not averaged) over a batch, with step $\eta' = \eta / (1 + \sqrt{M/N})^2$ for w and $\eta'/N$ for
    $\gamma$: the largest curvature of a batch of Gaussian inputs is divided out, so $\eta < 2$ is stable, and one
    sample at a time is the online SGD of `learning_dynamics` (with `loss_scale="samples"`). w starts along the
    correlation $\sum_j g(y_j) x_j$. Batch norm divides by the root mean square of its batch (the mean is not
    subtracted, sec. 4), after training by that of the whole training set. Samples that do not fill a batch are skipped.

    Weight norm with decay ends at ridge regression, SGD at the shortest least squares; real batch norm does not end on
    the ridge curve of `batch_norm_zeta` that Fig. 1a puts it on, but in the direction of least squares.

    Args:
        method: "sgd" (vanilla), "weight_norm" (with gamma decay `zeta`) or "batch_norm" (the real one, no decay).
        batch_size: M, None for the whole training set at once.
        loss_scale: Divisor of the sum of squares in the loss: "inputs" (N) or "samples" (P).
        anneal: Whether the learning rate falls to 0 over the epochs as a cosine, or stays.
        checkpoints: Increasing epochs after which to save the weights (0 for the start), as leading axis of the result;
            None for the end only.

    Raises:
        InvalidInput: The learning rate diverges.

    >>> from gapscope.theory.teacher_students import draw_teacher_task
    >>> task = draw_teacher_task(3.0, n_inputs=8, noise_variance=0.0)
    >>> students = train_students(task, method="sgd", epochs=2000)
    >>> bool(students.generalization_error[0] < 1e-6)
    True
    """
    samples = task.inputs.shape[1]
    batch = samples if batch_size is None else batch_size
    saved_epochs = [epochs] if checkpoints is None else list(checkpoints)
    _check(task, method, batch, epochs, zeta, saved_epochs)
    check_range("learning_rate", learning_rate, 0, low_open=True)
    activity(student)
    generator = resolve_numpy_generator(generator)
    decay = ridge_constant(task, zeta, loss_scale) * batch / samples
    peak = learning_rate / (1 + np.sqrt(batch / task.inputs.shape[2])) ** 2
    parameters = _start(task, method, student)
    saved = {0: _effective(method, parameters, task)}
    for epoch in range(epochs):
        rate = peak * (1 + np.cos(np.pi * epoch / epochs)) / 2 if anneal else peak
        for part in _batches(task, batch, generator):
            weights, gains = parameters[:, :-1], parameters[:, -1]
            turn, growth = steps(method, weights, gains, part.inputs, part.targets, student)
            parameters = parameters + rate * np.column_stack([turn, growth - decay * gains])
        if not np.abs(parameters).max() < _DIVERGED:
            raise InvalidInput(
                f"learning_rate must keep training finite; {learning_rate} diverged in epoch {epoch + 1}. Lower it."
            )
        if epoch + 1 in saved_epochs:
            saved[epoch + 1] = _effective(method, parameters, task)
    weights = np.stack([saved[epoch] for epoch in saved_epochs])
    return StudentWeights(weights[0] if checkpoints is None else weights, task.teachers, student)


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
    $\gamma$ corrected: with the printed $\eta$ no equation (6) follows). All settings as for `learning_dynamics`.

    Args:
        times: Increasing times t = (seen samples)/N at which to report; cost: N max(times) steps of O(N) per student.
        gamma, overlap, length: Values at time 0; None for a length of 1 (weight norm) or gamma (SGD).
        n_inputs: N.
    """
    check_method(method, zeta)
    check_range("learning_rate", learning_rate, 0, low_open=True)
    check_range("n_inputs", n_inputs, 2)
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
        lengths = np.linalg.norm(weights, axis=1) / np.sqrt(n_inputs)
        overlaps = np.sum(weights * teachers, axis=1) / n_inputs / lengths
        path[:, row] = np.stack([lengths if method == "sgd" else gains, overlaps, lengths])
    return Trajectory(times=moments, gamma=path[0], overlap=path[1], length=path[2])
