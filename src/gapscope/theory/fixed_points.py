r"""Fixed points of the learning dynamics, their stability, and shrinkage by batches.

These functions linearize `order_parameter_flow`. With the student's activity $h$ (1/2 ReLU, 1 linear) the paper's Table
1 becomes $\gamma_0 = h/(h + \zeta)$, $\eta_{max} = 2/\gamma_0$, $\eta_{eff} = \eta\gamma_0/L_0^2$: the direction is
stable iff $\eta\gamma_0^2 < 2L_0^2$.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.special import gammaln

from gapscope.base.errors import check_range
from gapscope.theory.dynamics import Method, OrderParameters, check_method, start_length
from gapscope.theory.statistical_mechanics import (
    Numbers,
    Student,
    activity,
    as_numbers,
    correlation_slopes,
    order_parameter_averages,
    output_correlations,
    validate_array,
    validate_order_parameters,
)


class Eigenvalues(NamedTuple):
    """Eigenvalues of the linearized dynamics of gain and overlap (negative: attracting).

    Attributes:
        gamma: Rate at which the gain returns to the fixed point.
        overlap: Rate at which the overlap does.
    """

    gamma: Numbers
    overlap: Numbers


def fixed_point(
    *, student: Student = "relu", zeta: ArrayLike = 0.0, length: ArrayLike = 1.0
) -> OrderParameters:
    r"""Return gain, overlap and length at the fixed point of online learning.

    $$(\gamma_0, R_0, L_0), \qquad R_0 = 1, \qquad
    \gamma_0 = \frac{1}{1 + 2\zeta}\ \text{(ReLU)},\ \frac{1}{1 + \zeta}\ \text{(linear)}$$

    Convention: loss = full square + $\zeta\gamma^2$ (with half a square, replace $\zeta$ by $2\zeta$). Exact for zeta
    = 0. For zeta > 0 it holds to first order in the learning rate, as in the paper (Proposition 1): there $I_2 > 0$, so
    L keeps growing, about as $t^{1/4}$, and R tends to 1 only as L grows.

    Args:
        student: Activation g of the student, "relu" or "linear"; the teacher's as well, or the teacher is linear.
        zeta: Gamma decay, 0 for weight norm and SGD.
        length: L, which is free for weight norm; 1 for SGD.

    >>> float(fixed_point(student="relu", zeta=0.25).gamma) == 1 / 1.5
    True
    """
    active = activity(student)
    gain = active / (active + validate_array("zeta", zeta, 0))
    return OrderParameters(
        gain, np.ones_like(gain), validate_array("length", length, 0, low_open=True)
    )


def max_learning_rate(*, student: Student = "relu", zeta: ArrayLike = 0.0) -> Numbers:
    r"""Compute the largest effective learning rate at which the student's direction converges.

    $$\eta_{max} = \Big(\frac{\partial(\gamma_0 I_3 - I_1)}{\gamma_0\,\partial R} - \zeta\gamma_0\Big) \Big/
    \frac{\partial I_2}{2\,\partial R} = \frac{2}{\gamma_0}$$

    This is $2 + 4\zeta$ (ReLU) and $2 + 2\zeta$ (linear): batch norm exceeds weight norm and SGD (both 2) by at least
    the $2\zeta$ of Proposition 4. Table 1 in closed form; exact for zeta = 0 (see `stability_eigenvalues`).

    Args:
        student: Activation g of the student, "relu" or "linear"; the teacher's as well, or the teacher is linear.
        zeta: Gamma decay of the loss full square + $\zeta\gamma^2$, 0 or larger; 0 for SGD.
    """
    return 2 / fixed_point(student=student, zeta=zeta).gamma


def effective_learning_rate(
    learning_rate: ArrayLike,
    *,
    student: Student = "relu",
    zeta: ArrayLike = 0.0,
    length: ArrayLike = 1.0,
) -> Numbers:
    r"""Compute the effective learning rate of the direction at the fixed point (Table 1).

    $\eta_{eff} = \eta\gamma_0/L_0^2$. Training converges iff it is below `max_learning_rate`. Growing weights lower it.

    Args:
        learning_rate: Learning rate eta, positive.
        student: Activation g of the student, "relu" or "linear"; the teacher's as well, or the teacher is linear.
        zeta: Gamma decay of the loss full square + $\zeta\gamma^2$, 0 or larger; 0 for SGD.
        length: Length L at the fixed point, positive; 1 for SGD.
    """
    point = fixed_point(student=student, zeta=zeta, length=length)
    return as_numbers("learning_rate", learning_rate) * point.gamma / point.length**2


def stability_eigenvalues(
    learning_rate: ArrayLike,
    *,
    student: Student = "relu",
    zeta: ArrayLike = 0.0,
    length: ArrayLike = 1.0,
) -> Eigenvalues:
    r"""Compute the rates at which gain and overlap return to the fixed point (Proposition 2).

    $$\lambda_\gamma = \frac{\eta}{\gamma_0}\frac{\partial I_1}{\partial\gamma} - 2\eta\zeta = -\eta(h + \zeta), \qquad
    \lambda_R = \frac{\partial I_2}{\partial R}\frac{\eta\gamma_0}{2L_0^2}(\eta_{max} - \eta_{eff})$$

    $\lambda_\gamma$ is the exact derivative of the gain's flow by the gain. $\lambda_R$ is that of the overlap's flow
    by the overlap, exact for zeta = 0; for zeta > 0 the paper neglects $-\eta^2\gamma_0^2 I_2/2L_0^4$, $I_2 = h(1 -
    \gamma_0)^2$, which `dynamics_jacobian` keeps: at $L_0 = 1$, ReLU, zeta = 0.25 it is 0.003 of 0.30 at $\eta = 0.5$
    and 0.083 of 0.73 at $\eta = 2.6$. SGD: zeta = 0, length 1.

    Args:
        learning_rate: Learning rate eta, positive.
        student: Activation g of the student, "relu" or "linear"; the teacher's as well, or the teacher is linear.
        zeta: Gamma decay of the loss full square + $\zeta\gamma^2$, 0 or larger; 0 for SGD.
        length: Length L at the fixed point, positive; 1 for SGD.
    """
    active = activity(student)
    rate = as_numbers("learning_rate", learning_rate)
    point = fixed_point(student=student, zeta=zeta, length=length)
    highest = max_learning_rate(student=student, zeta=zeta)
    effective = effective_learning_rate(rate, student=student, zeta=zeta, length=length)
    # I2 = c3 + h gamma^2 - 2 gamma c1, and at R = 1 c3' = 0 and c1' = h
    slope_i2 = -2 * active * point.gamma
    return Eigenvalues(
        gamma=-rate * (active + as_numbers("zeta", zeta)),
        overlap=slope_i2 * rate * point.gamma / (2 * point.length**2) * (highest - effective),
    )


def dynamics_jacobian(
    gamma: float,
    overlap: float,
    length: float | None = None,
    *,
    learning_rate: float,
    method: Method = "weight_norm",
    student: Student = "relu",
    zeta: float = 0.0,
) -> Float[np.ndarray, "k k"]:
    r"""Compute the Jacobian of `order_parameter_flow` in (gamma, R, L), for SGD in (gamma, R).

    Exact derivatives with every term in $\eta^2$, also at R = 1 (from below). At the fixed point for zeta = 0
    `numpy.linalg.eigvals` of it gives `stability_eigenvalues` and, for weight norm, 0 for the free length. For zeta > 0
    that point is not fixed (L grows): compare diagonal entries.

    Args:
        gamma: Gain of the student, 0 or larger.
        overlap: Cosine R between student and teacher.
        length: Length L, None for 1; always gamma for SGD.
        learning_rate: Learning rate eta, positive.
        method: "weight_norm" or "sgd".
        student: Activation g of the student, "relu" or "linear"; the teacher's as well, or the teacher is linear.
        zeta: Gamma decay of the loss full square + $\zeta\gamma^2$, 0 or larger; 0 for SGD.

    >>> dynamics_jacobian(1.0, 1.0, learning_rate=0.5, method="sgd")
    array([[-0.25 ,  0.125],
           [ 0.   , -0.375]])
    """
    check_method(method, zeta)
    check_range("learning_rate", learning_rate, 0, low_open=True)
    validate_order_parameters(gamma, overlap)
    length = start_length(method, gamma, length)
    cosine = as_numbers("overlap", overlap)
    active = activity(student)
    outputs, _ = output_correlations(cosine, student)
    outputs_slope, teacher_slope = correlation_slopes(cosine, student)
    radial, i2, i3 = order_parameter_averages(as_numbers("gamma", gamma), cosine, student)
    # Gradients by (gamma, R) of I1/gamma = c1 - h gamma, I2 = c3 + h gamma^2 - 2 gamma c1 and I3 = c3 - h gamma R,
    # where c1 and c3 depend on R alone.
    radial_by = np.array([-active, outputs_slope])
    i2_by = np.array([2 * active * gamma - 2 * outputs, teacher_slope - 2 * gamma * outputs_slope])
    i3_by = np.array([-active * cosine, teacher_slope - active * gamma])
    unit_gamma, unit_cosine = np.eye(2)  # gradients of gamma and R themselves
    # The three flows of `order_parameter_flow`: dgamma/dt = learning_rate (I1/gamma - zeta gamma), dL/dt = growth and
    # dR/dt = learning_rate torque / L^2 - R growth / L, where growth ~ L^-3 and torque does not depend on L.
    growth = learning_rate**2 * gamma**2 * i2 / (2 * length**3)
    growth_by = (
        learning_rate**2 / (2 * length**3) * (gamma**2 * i2_by + 2 * gamma * i2 * unit_gamma)
    )
    torque = gamma * (i3 - cosine * radial)
    torque_by = (i3 - cosine * radial) * unit_gamma + gamma * (
        i3_by - cosine * radial_by - radial * unit_cosine
    )
    jacobian = np.zeros((3, 3))
    jacobian[0, :2] = learning_rate * (radial_by - zeta * unit_gamma)
    jacobian[1, :2] = (
        learning_rate / length**2 * torque_by - (cosine * growth_by + growth * unit_cosine) / length
    )
    jacobian[1, 2] = -2 * learning_rate * torque / length**3 + 4 * cosine * growth / length**2
    jacobian[2, :2] = growth_by
    jacobian[2, 2] = -3 * growth / length
    if method == "weight_norm":
        return jacobian
    # SGD moves gamma with L: its flow is the sum of rows gamma and L at L = gamma, and both columns act.
    both = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    return both.T @ (jacobian @ both)


def batch_norm_gamma(batch_size: ArrayLike) -> Numbers:
    r"""Compute the gain at which batch norm converges if its direction is the teacher's.

    $$\gamma^* = E[\sigma_B] = \sqrt{\tfrac 2M}\,\frac{\Gamma(\frac{M + 1}2)}{\Gamma(\frac M2)}$$

    Labels are noise-free, and batch norm divides by the root mean square of a batch of M, as in sec. 4. For t ~ N(0, 1)
    and squared loss, training minimizes $E[(g(t) - g(\gamma t/\sigma_B))^2]$ with t in its own batch. Exact for linear
    and ReLU students; to first order $1 - 1/4M$. Evaluation divides by the population deviation 1, so that outputs are
    too small by the factor $\gamma^*$; the paper's fixed point $\gamma_0 = 1 - 1/2M$ is $\gamma^* E[\sigma_B]$.

    Args:
        batch_size: Batch size M, 1 or larger.
    """
    sizes = validate_array("batch_size", batch_size, 1)
    return np.sqrt(2 / sizes) * np.exp(gammaln((sizes + 1) / 2) - gammaln(sizes / 2))


def batch_norm_zeta(batch_size: ArrayLike, *, student: Student = "linear") -> Numbers:
    r"""Compute the gamma decay that replaces batch norm with batches of M in the paper.

    $$\zeta = \frac{1}{2M}\ \text{(linear)}, \quad \frac{1}{4M}\ \text{(ReLU)}$$

    Section 4, appendix C.3, for the loss full square + $\zeta\gamma^2$. First order in 1/M, Gaussian pre-activations.
    It matches real batch norm's output scale $\gamma^* E[\sigma_B]$ at the teacher's direction; the exact linear value
    is $1/E[\sigma_B]^2 - 1$ (0.8 % above 1/2M at M = 32). The direction on few noisy samples differs: batch norm decays
    the variance of its outputs on the training data, not the norm of the weights.

    Args:
        batch_size: Batch size M, 1 or larger.
        student: Activation g of the student, "relu" or "linear"; the teacher's as well, or the teacher is linear.

    >>> float(batch_norm_zeta(32)) == 1 / 64, float(batch_norm_zeta(16, student="relu")) == 1 / 64
    (True, True)
    """
    return activity(student) / (2 * validate_array("batch_size", batch_size, 1))
