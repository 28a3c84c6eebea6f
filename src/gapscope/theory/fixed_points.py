r"""Fixed points of the learning dynamics, their Jacobian and largest learning rates.

All of it linearizes `order_parameter_flow`. With the student's activity $h$ (1/2 ReLU, 1 linear) the paper's Table 1
becomes $\gamma_0 = h/(h + \zeta)$, $\eta_{max} = 2/\gamma_0$, $\eta_{eff} = \eta\gamma_0/L_0^2$: the direction is
stable iff $\eta\gamma_0^2 < 2L_0^2$.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from gapscope.base.errors import check_range
from gapscope.theory.dynamics import Method, OrderParameters, check_method, start_length
from gapscope.theory.order_parameters import (
    Numbers,
    Student,
    activity,
    checked_array,
    checked_order_parameters,
    correlation_slopes,
    order_parameter_averages,
    output_correlations,
)


class Eigenvalues(NamedTuple):
    """Eigenvalues of the linearized dynamics, per unit of time (negative: attracting).

    Attributes:
        gamma: Rate of the gain (and of the length, for SGD).
        overlap: Rate of the overlap R.
    """

    gamma: Numbers
    overlap: Numbers


def fixed_point(*, student: Student = "relu", zeta: ArrayLike = 0.0, length: ArrayLike = 1.0) -> OrderParameters:
    r"""Return gain, overlap and length at the fixed point of online learning.

    $$(\gamma_0, R_0, L_0), \qquad R_0 = 1, \qquad
    \gamma_0 = \frac{1}{1 + 2\zeta}\ \text{(ReLU)},\ \frac{1}{1 + \zeta}\ \text{(linear)}$$

    Convention: loss = full square + $\zeta\gamma^2$ (with half a square, replace $\zeta$ by $2\zeta$). Exact for zeta
    = 0, where weight norm and SGD end at gain 1. For zeta > 0 it holds to first order in the learning rate, as in the
    paper (Proposition 1): there $I_2 > 0$, so L keeps growing, about as $t^{1/4}$, and R tends to 1 only as L grows.
    At $\eta = 0.5$, t = 3000, ReLU, zeta = 0.25: (0.6657, 0.9985, 2.508) instead of $\gamma_0 = 0.6667$.

    Args:
        zeta: Gamma decay, 0 for weight norm and SGD.
        length: L, which is free for weight norm; 1 for SGD.

    >>> float(fixed_point(student="relu", zeta=0.25).gamma) == 1 / 1.5
    True
    """
    share = activity(student)
    gain = share / (share + checked_array("zeta", zeta, 0))
    return OrderParameters(gain, np.ones_like(gain), checked_array("length", length, 0, low_open=True))


def max_learning_rate(*, student: Student = "relu", zeta: ArrayLike = 0.0) -> Numbers:
    r"""Compute the largest effective learning rate at which the student's direction converges.

    $$\eta_{max} = \Big(\frac{\partial(\gamma_0 I_3 - I_1)}{\gamma_0\,\partial R} - \zeta\gamma_0\Big) \Big/
    \frac{\partial I_2}{2\,\partial R} = \frac{2}{\gamma_0}$$

    That is $2 + 4\zeta$ (ReLU) and $2 + 2\zeta$ (linear), so batch norm's gain over weight norm and SGD (both 2, zeta
    = 0) is at least the $2\zeta$ of Proposition 4. Table 1 in closed form, with the paper's neglect of $I_2$ at the
    fixed point (see `stability_eigenvalues`); exact for zeta = 0. Compare with `effective_learning_rate`.

    Args:
        zeta: Gamma decay of the loss full square + $\zeta\gamma^2$; 0 for weight norm and SGD.

    >>> float(max_learning_rate(zeta=0.25)), float(max_learning_rate(student="linear", zeta=0.25))
    (3.0, 2.5)
    """
    return 2 / fixed_point(student=student, zeta=zeta).gamma


def effective_learning_rate(
    learning_rate: ArrayLike, *, student: Student = "relu", zeta: ArrayLike = 0.0, length: ArrayLike = 1.0
) -> Numbers:
    r"""Compute the effective learning rate of the direction at the fixed point (Table 1).

    $\eta_{eff} = \eta\gamma_0/L_0^2$. With zeta = 0 it is $\eta/L_0^2$ for weight norm and, with length 1, $\eta$ for
    SGD. Exact. Training converges iff it is below `max_learning_rate`.

    Args:
        length: Length $L_0$ of the trained vector; growing weights lower the effective rate.

    >>> float(effective_learning_rate(3.0, zeta=0.25, length=2.0))
    0.5
    """
    point = fixed_point(student=student, zeta=zeta, length=length)
    return np.asarray(learning_rate, np.float64) * point.gamma / point.length**2


def stability_eigenvalues(
    learning_rate: ArrayLike, *, student: Student = "relu", zeta: ArrayLike = 0.0, length: ArrayLike = 1.0
) -> Eigenvalues:
    r"""Compute the rates at which gain and overlap return to the fixed point (Proposition 2).

    $$\lambda_\gamma = \frac{\eta}{\gamma_0}\frac{\partial I_1}{\partial\gamma} - 2\eta\zeta = -\eta(h + \zeta), \qquad
    \lambda_R = \frac{\partial I_2}{\partial R}\frac{\eta\gamma_0}{2L_0^2}(\eta_{max} - \eta_{eff})$$

    $\lambda_\gamma$ is the exact derivative of the gain's flow by the gain. $\lambda_R$ is that of the overlap's by
    the overlap, exact for zeta = 0; for zeta > 0 the paper drops $-\eta^2\gamma_0^2 I_2/2L_0^4$, $I_2 = h(1 -
    \gamma_0)^2$, which `dynamics_jacobian` keeps: at $L_0 = 1$, ReLU, zeta = 0.25 it is 0.003 of 0.30 at $\eta = 0.5$
    and 0.083 of 0.73 at $\eta = 2.6$. SGD: zeta = 0, length 1.

    Args:
        length: Length $L_0$.

    Returns:
        The two eigenvalues as float64 arrays; $\lambda_R < 0$ iff the effective learning rate is below the maximum.

    >>> [float(rate) for rate in stability_eigenvalues(0.5)]
    [-0.25, -0.375]
    """
    share, rate = activity(student), np.asarray(learning_rate, np.float64)
    point = fixed_point(student=student, zeta=zeta, length=length)
    highest = max_learning_rate(student=student, zeta=zeta)
    effective = effective_learning_rate(rate, student=student, zeta=zeta, length=length)
    slope_i2 = -2 * share * point.gamma
    return Eigenvalues(
        gamma=-rate * (share + np.asarray(zeta, np.float64)),
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

    Exact derivatives with every term in $\eta^2$, also at R = 1 (from below), where finite differences of step h are
    off by $O(\sqrt h)$ because $\arcsin$ has no slope there. At the fixed point for zeta = 0 `numpy.linalg.eigvals`
    of it gives `stability_eigenvalues` and, for weight norm, 0 for the free length. For zeta > 0 that point is not
    quite fixed (L grows): there compare diagonal entries.

    Args:
        length: Length L, None for 1; always gamma for SGD.

    Returns:
        Rows: derivatives of the flow of gamma, R (and L); columns: by gamma, R (and L).

    >>> dynamics_jacobian(1.0, 1.0, learning_rate=0.5, method="sgd")
    array([[-0.25 ,  0.125],
           [ 0.   , -0.375]])
    """
    check_method(method, zeta)
    check_range("learning_rate", learning_rate, 0, low_open=True)
    checked_order_parameters(gamma, overlap)
    size, cosine = start_length(method, gamma, length), np.asarray(overlap, np.float64)
    jacobian = _jacobian(gamma, cosine, size, student, learning_rate, zeta)
    if method == "weight_norm":
        return jacobian
    # SGD moves gamma with L: its flow is the sum of rows gamma and L at L = gamma, and both columns act.
    by_gamma, by_overlap = jacobian[:, 0] + jacobian[:, 2], jacobian[:, 1]
    return np.array([[by_gamma[0] + by_gamma[2], by_overlap[0] + by_overlap[2]], [by_gamma[1], by_overlap[1]]])


def _jacobian(
    gamma: float, overlap: Numbers, length: float, student: Student, rate: float, zeta: float
) -> Float[np.ndarray, "3 3"]:
    share = activity(student)
    outputs, _ = output_correlations(overlap, student)
    outputs_slope, teacher_slope = correlation_slopes(overlap, student)
    radial, i2, i3 = order_parameter_averages(np.asarray(gamma, np.float64), overlap, student)
    # Gradients by (gamma, R) of I1 / gamma, I2 and I3.
    radial_by = np.array([-share, outputs_slope])
    i2_by = np.array([2 * share * gamma - 2 * outputs, teacher_slope - 2 * gamma * outputs_slope])
    i3_by = np.array([-share * overlap, teacher_slope - share * gamma])
    unit_gamma, unit_overlap = np.eye(2)
    growth = rate**2 * gamma**2 * i2 / (2 * length**3)
    growth_by = rate**2 / (2 * length**3) * (gamma**2 * i2_by + 2 * gamma * i2 * unit_gamma)
    torque = gamma * (i3 - overlap * radial)
    torque_by = (i3 - overlap * radial) * unit_gamma + gamma * (i3_by - overlap * radial_by - radial * unit_overlap)
    jacobian = np.zeros((3, 3))
    jacobian[0, :2] = rate * (radial_by - zeta * unit_gamma)
    jacobian[1, :2] = rate / length**2 * torque_by - (overlap * growth_by + growth * unit_overlap) / length
    jacobian[1, 2] = -2 * rate * torque / length**3 + 4 * overlap * growth / length**2
    jacobian[2, :2] = growth_by
    jacobian[2, 2] = -3 * growth / length
    return jacobian
