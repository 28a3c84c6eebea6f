"""Training of one-layer students on finite data by SGD, weight norm or batch norm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from gapscope.base.errors import InvalidInput, check_choice, check_range
from gapscope.base.randomness import resolve_numpy_generator
from gapscope.theory.generalization import LossScale
from gapscope.theory.order_parameters import Student, activity
from gapscope.theory.student_steps import (
    TrainingMethod,
    Weights,
    activate,
    pre_activations,
    root_mean_square,
    steps,
)
from gapscope.theory.teacher_students import StudentWeights, TeacherTask, ridge_constant

_DIVERGED = 1e9
Start = Literal["correlation", "random"]
Parameters = Float[np.ndarray, "k n_plus_1"]


def _check(task: TeacherTask, method: str, batch: int, epochs: int, zeta: float, checkpoints: Sequence[int]) -> None:
    check_choice("method", method, ("sgd", "weight_norm", "batch_norm"))
    check_range("epochs", epochs, 0)
    samples = task.inputs.shape[1]
    if not 1 <= batch <= samples:
        raise InvalidInput(f"batch_size must be in [1, {samples}], the number of samples; got {batch}. Lower it.")
    if method != "weight_norm" and zeta != 0:
        raise InvalidInput(f"zeta must be 0 for method {method!r}; got {zeta}. Gamma decay goes with 'weight_norm'.")
    inside = all(0 <= epoch <= epochs for epoch in checkpoints)
    if not inside or any(later <= epoch for epoch, later in pairwise(checkpoints)):
        raise InvalidInput(f"checkpoints must increase within [0, {epochs}]; got {list(checkpoints)}. Or raise epochs.")


def _start(
    task: TeacherTask, student: Student, start: Start, length: float, generator: np.random.Generator
) -> Parameters:
    check_range("start_length", length, 0, low_open=True)
    check_choice("start", start, ("correlation", "random"))
    if start == "random":
        weights = generator.standard_normal(task.teachers.shape)
    else:
        weights = np.einsum("kpn,kp->kn", task.inputs, activate(task.targets, student))
    norms = np.linalg.norm(weights, axis=1, keepdims=True)
    if not norms.all():
        raise InvalidInput(
            f"Every ReLU student must have a positive target to start from; {np.sum(norms == 0)} of {len(norms)} have "
            "none. Draw more samples, or pass start='random'."
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
    momentum: float = 0.0,
    anneal: bool = True,
    start: Start = "correlation",
    start_length: float | None = None,
    checkpoints: Sequence[int] | None = None,
    generator: np.random.Generator | None = None,
) -> StudentWeights:
    r"""Train one-layer students by gradient descent on finite data (sec. 4, Fig. 1).

    The loss is the full square over all samples divided by N or P plus $\zeta\gamma^2$; half of it is descended,
    summed (not averaged) over a batch, with step $\eta' = \eta / (1 + \sqrt{M/N})^2$ for w and $\eta'/N$ for
    $\gamma$: the largest curvature of a batch of Gaussian inputs is divided out, so $\eta < 2(1 - m)$ is stable (m =
    momentum), and one sample at a time is the online SGD of `learning_dynamics` (with `loss_scale="samples"`). Batch
    norm divides by the root mean square of its batch (the mean is not subtracted, sec. 4); what counts afterwards is
    its evaluation mode, with the root mean square over the whole training set. Batches are resampled each epoch
    without replacement; samples that do not fill a batch are skipped.

    Exactness: converged weight norm with decay equals ridge regression (to 1e-12 in w for zeta = 0.25), SGD the
    shortest least squares. Real batch norm does not end on the ridge curve of `batch_norm_zeta` that Fig. 1a puts it
    on: its direction goes to least squares, and values on the curve near alpha = 1 come from short training. ReLU
    students are not convex: long starts, large steps and momentum change where they end.

    Args:
        method: "sgd" (vanilla), "weight_norm" (with gamma decay `zeta`) or "batch_norm" (the real one, no decay).
        epochs: Passes over the data.
        learning_rate: $\eta$ at the start, positive.
        batch_size: M, None for the whole training set at once.
        zeta: Gamma decay, for weight norm only.
        loss_scale: Divisor of the sum of squares in the loss: "inputs" (N) or "samples" (P).
        momentum: Heavy-ball momentum; it speeds full-batch training up near alpha = 1.
        anneal: Whether the learning rate falls to 0 over the epochs as a cosine, or stays.
        start: w along the correlation $\sum_j g(y_j) x_j$, from which linear students reach the shortest solution, or
            random: its part outside the data's span is never unlearned. gamma starts at 1.
        start_length: $\|w\|/\sqrt N$ at the start, None for 1 with a gain and 0.01 for SGD, whose ReLU students keep
            what a long start puts where no sample is active.
        checkpoints: Increasing epochs after which to save the weights (0 for the start), None for the end only.

    Returns:
        Effective weights of the students; with checkpoints these are the leading axis.

    Raises:
        InvalidInput: A value outside its range, a batch larger than the training set, or a learning rate that diverges.

    >>> from gapscope.theory.teacher_students import draw_teacher_task
    >>> task = draw_teacher_task(3.0, n_inputs=8, noise_variance=0.0)
    >>> students = train_students(task, method="sgd", epochs=2000)
    >>> bool(students.generalization_error[0] < 1e-6)
    True
    """
    samples = task.inputs.shape[1]
    batch = samples if batch_size is None else batch_size
    kept = [epochs] if checkpoints is None else list(checkpoints)
    _check(task, method, batch, epochs, zeta, kept)
    check_range("learning_rate", learning_rate, 0, low_open=True)
    check_range("momentum", momentum, 0, 1, high_open=True)
    activity(student)
    generator = resolve_numpy_generator(generator)
    decay = ridge_constant(task, zeta, loss_scale) * batch / samples
    peak = learning_rate / (1 + np.sqrt(batch / task.inputs.shape[2])) ** 2
    length = start_length if start_length is not None else 0.01 if method == "sgd" else 1.0
    parameters = _start(task, student, start, length, generator)
    speed = np.zeros_like(parameters)
    found = {0: _effective(method, parameters, task)}
    for epoch in range(epochs):
        rate = peak * (1 + np.cos(np.pi * epoch / epochs)) / 2 if anneal else peak
        for part in _batches(task, batch, generator):
            weights, gains = parameters[:, :-1], parameters[:, -1]
            turn, growth = steps(method, weights, gains, part.inputs, part.targets, student)
            speed = momentum * speed + np.column_stack([turn, growth - decay * gains])
            parameters = parameters + rate * speed
        if not np.abs(parameters).max() < _DIVERGED:
            raise InvalidInput(
                f"learning_rate must keep training finite; {learning_rate} diverged in epoch {epoch + 1}. Lower it."
            )
        if epoch + 1 in kept:
            found[epoch + 1] = _effective(method, parameters, task)
    weights = np.stack([found[epoch] for epoch in kept])
    return StudentWeights(weights[0] if checkpoints is None else weights, task.teachers, student)
