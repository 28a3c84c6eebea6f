r"""Generalization error of a trained one-layer student over its number of samples.

P noisy samples $y = w^{*\top} x + s$, $s \sim N(0, S)$, $x \sim N(0, I/N)$, $\alpha = P/N$, $N \to \infty$; training
runs to its end.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from gapscope.base.errors import check_choice
from gapscope.theory.statistical_mechanics import Numbers, Student, activity, checked_array

LossScale = Literal["inputs", "samples"]


def _roots(alpha: Numbers, ridge: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Return b = 1 - alpha - ridge, s = sqrt(b^2 + 4 ridge) and ridge * G = (b + s) / 2."""
    b = 1 - alpha - ridge
    s = np.sqrt(b**2 + 4 * ridge)
    with np.errstate(divide="ignore", invalid="ignore"):
        shrunk = np.where(b >= 0, (b + s) / 2, 2 * ridge / (s - b))[()]
    return b, s, shrunk


def resolvent_trace(alpha: ArrayLike, ridge: ArrayLike) -> Numbers:
    r"""Compute the response G of Gaussian samples, the trace of their resolvent.

    $G = \frac 1N \mathrm{tr}(X^\top X + \zeta I)^{-1}$ of $\alpha N$ samples x ~ N(0, I/N).

    $$G = \frac{1 - \alpha - \zeta + \sqrt{(\zeta + (1 + \sqrt\alpha)^2)(\zeta + (1 - \sqrt\alpha)^2)}}{2\zeta}$$

    Exact for $N \to \infty$ (sec. 4.1, after Krogh and Hertz, J. Phys. A 25, 1135, 1992).

    Args:
        ridge: The constant $\zeta$, 0 or larger; broadcasts with `alpha`. At 0 G is infinite for alpha up to 1.

    >>> float(resolvent_trace(0.0, 0.25)), round(float(resolvent_trace(1.0, 0.25)), 8)
    (4.0, 1.56155281)
    """
    ridges = checked_array("ridge", ridge, 0)
    b, s, shrunk = _roots(checked_array("alpha", alpha, 0), ridges)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(b > 0, np.divide(shrunk, ridges), 2 / (s - b))[()]


def _linear_error(alpha: Numbers, noise_variance: Numbers, ridge: Numbers) -> Numbers:
    # eps = S d(ridge G)/d ridge - ridge^2 dG/d ridge with k = ridge G and s = 2k - b, from ridge G^2 - b G - 1 = 0:
    # dG/d ridge = -G (1 + G) / s, so d(ridge G)/d ridge = (1 - k) / s and -ridge^2 dG/d ridge = k (ridge + k) / s.
    _, s, k = _roots(alpha, ridge)
    error = noise_variance * (1 - k) + k * (ridge + k)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(error == 0, 0.0, error / s)[()]


def student_generalization(
    alpha: ArrayLike,
    *,
    student: Student = "linear",
    noise_variance: ArrayLike = 0.25,
    zeta: ArrayLike = 0.0,
    loss_scale: LossScale = "inputs",
) -> Numbers:
    r"""Compute the generalization error of a trained student over the load alpha (Fig. 1).

    $\alpha = P/N$; the teacher is linear and noisy.
    Vanilla SGD is zeta = 0, weight norm with gamma decay is zeta > 0. With G of `resolvent_trace`:
    $$\epsilon_{lin}(\alpha, \zeta) = S\frac{\partial(\zeta G)}{\partial\zeta}
    - \zeta^2\frac{\partial G}{\partial\zeta}, \qquad
    \epsilon_{ReLU}(\alpha, \zeta) = \tfrac 12 + \tfrac 12\epsilon_{lin}(\alpha/2, \zeta)$$
    and, at zeta = 0,
    $$\epsilon_{lin} = \begin{cases} 1 - \alpha + \alpha S/(1 - \alpha) & \alpha < 1 \\
    S/(\alpha - 1) & \alpha > 1 \end{cases} \qquad \epsilon_{ReLU} = \begin{cases}
    1 - \alpha/4 + \alpha S/2(2 - \alpha) & \alpha < 2 \\ 1/2 + S/(\alpha - 2) & \alpha > 2\end{cases}$$

    Convention: loss = full square, summed and divided by N ("inputs") or by P ("samples"), plus $\zeta\gamma^2$. The
    paper writes 1/P, but its curve is that of 1/N, least at $\zeta = S$; with 1/P the ridge constant is
    $\alpha\zeta$.

    Linear: exact for $N \to \infty$ and the shortest of all minimizers; at N = 200 the mean error of simulated students
    agrees within its standard error of 0.4 to 1.5 %, but is 10 ± 5 % higher at zeta = 0, alpha = 0.95 and 1.05.
    ReLU: exact for the student that fits its positive targets only, since $(x, y)$ and $(-x, -y)$ weigh the same in a
    linear fit: half of the samples act like $\alpha/2$ Gaussian ones. This is the paper's formula, extended to alpha
    > 2 and to zeta > 0. Gradient descent on the ReLU student also feels its negative targets and ends lower: at zeta =
    0 0.83 instead of 0.875 (alpha = 1), at zeta = 1/64 0.82 instead of 0.86 (1) and 0.80 instead of 0.97 (2).

    Args:
        noise_variance: S, variance of the teacher's label noise; the paper's figure has 0.25. 0 gives the lower bound.
        loss_scale: Divisor of the sum of squares in the loss.

    Returns:
        Mean squared error against noise-free targets; infinite at the peak (alpha = 1 or 2) if zeta = 0 and S > 0.

    >>> [float(error) for error in student_generalization([0.5, 1.0, 2.0])]
    [0.75, inf, 0.25]
    >>> round(float(student_generalization(1.0, zeta=0.25)), 8)
    0.3903882
    """
    check_choice("loss_scale", loss_scale, ("inputs", "samples"))
    active, loads = activity(student), checked_array("alpha", alpha, 0)
    noise, decays = checked_array("noise_variance", noise_variance, 0), checked_array("zeta", zeta, 0)
    ridge = decays * loads if loss_scale == "samples" else decays
    return 1 - active + active * _linear_error(active * loads, noise, ridge)
