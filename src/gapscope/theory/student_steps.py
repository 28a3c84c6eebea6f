r"""Gradients of one-layer students under SGD, weight norm and batch norm, vectorized.

All are gradients of half the sum of squares over the given samples, downhill; $\delta_j = g'(s_j)[y_j - g(s_j)]$.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from jaxtyping import Float

from gapscope.theory.order_parameters import Student

TrainingMethod = Literal["sgd", "weight_norm", "batch_norm"]
Weights = Float[np.ndarray, "k n"]
Gains = Float[np.ndarray, " k"]
Inputs = Float[np.ndarray, "k m n"]
Targets = Float[np.ndarray, "k m"]


def pre_activations(inputs: Inputs, weights: Weights) -> Targets:
    """Return each student's w^T x on its own samples.

    Args:
        inputs: Samples of each student.
        weights: One vector per student.

    >>> pre_activations(np.ones((1, 2, 3)), np.ones((1, 3)))
    array([[3., 3.]])
    """
    return np.matmul(inputs, weights[:, :, None])[:, :, 0]


def activate(pre_activation: Targets, student: Student) -> Targets:
    """Return the outputs g(s) of a student or a teacher.

    Args:
        pre_activation: s.
        student: Activation g.

    >>> activate(np.array([[-1.0, 2.0]]), "relu")
    array([[0., 2.]])
    """
    return np.maximum(pre_activation, 0) if student == "relu" else pre_activation


def _output_gradient(pre_activation: Targets, targets: Targets, student: Student) -> Targets:
    residual = targets - activate(pre_activation, student)
    return residual * (pre_activation > 0) if student == "relu" else residual


def _weight_gradient(inputs: Inputs, pull: Targets) -> Weights:
    return np.matmul(pull[:, None, :], inputs)[:, 0, :]


def root_mean_square(values: Targets) -> Float[np.ndarray, "k 1"]:
    """Return the root mean square over the samples of each student.

    Args:
        values: One number per sample.

    >>> root_mean_square(np.array([[1.0, -1.0]]))
    array([[1.]])
    """
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

    Args:
        method: How the student is parametrized.
        weights: w.
        gains: gamma; not used for SGD.
        inputs: One batch of samples per student.
        targets: Their targets.
        student: Activation g.

    Returns:
        Directions of the weights and of the gains.

    >>> steps("sgd", np.zeros((1, 1)), np.ones(1), np.ones((1, 1, 1)), np.ones((1, 1)), "linear")
    (array([[1.]]), array([0.]))
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
