r"""Training dynamics and generalization error of a one-layer student.

The dynamics are those of online SGD. The generalization error is that after training to the end on P noisy samples
$y = w^{*\top} x + s$, $s \sim N(0, S)$, $x \sim N(0, I/N)$, with $\alpha = P/N$ and $N \to \infty$.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.integrate import solve_ivp

from gapscope.base.errors import InvalidInput, check_choice, check_range
from gapscope.theory.statistical_mechanics import (
    Numbers,
    Student,
    activity,
    as_numbers,
    order_parameter_averages,
    validate_array,
    validate_order_parameters,
)

Method = Literal["weight_norm", "sgd"]
# order parameters and weights far beyond any solution, before they overflow
DIVERGED = 1e6


class OrderParameters(NamedTuple):
    """Gain gamma, overlap R and length L of a student, or their derivatives by time.

    Attributes:
        gamma: Gain of the student.
        overlap: Cosine R between student and teacher.
        length: Length L of the trained vector.
    """

    gamma: Numbers
    overlap: Numbers
    length: Numbers


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Order parameters over time t = samples / N, with one column per simulated student.

    Attributes:
        times: Times t, increasing.
        gamma: Gain at each time.
        overlap: Cosine R between student and teacher at each time.
        length: Length L of the trained vector at each time.
    """

    times: Float[np.ndarray, " t"]
    gamma: Float[np.ndarray, "t ..."]
    overlap: Float[np.ndarray, "t ..."]
    length: Float[np.ndarray, "t ..."]


def check_method(method: str, zeta: float) -> None:
    """Raise InvalidInput for unknown methods, negative decay, and decay without a gamma."""
    check_choice("method", method, ("weight_norm", "sgd"))
    check_range("zeta", zeta, 0)
    if method == "sgd" and zeta != 0:
        raise InvalidInput(
            f"zeta must be 0 for method 'sgd', which has no gamma; got {zeta}. Use 'weight_norm'."
        )


def start_length(method: Method, gamma: float, length: float | None) -> float:
    """Resolve a student's length: free for weight norm (None is 1), always gamma for SGD."""
    if method == "sgd" and length not in (None, gamma):
        raise InvalidInput(
            f"Got length {length} for method 'sgd'; its length is gamma. Omit length."
        )
    name = "length"
    if method == "sgd":
        name = "gamma"
        length = gamma
    elif length is None:
        length = 1.0
    check_range(name, length, 0, low_open=True)
    return length


def validate_times(times: ArrayLike) -> Float[np.ndarray, " t"]:
    """Return reporting times (increasing, 0 or larger, the last positive) as a float64 array."""
    result = np.atleast_1d(as_numbers("times", times))
    if (
        result.ndim != 1
        or result.size == 0
        or result[0] < 0
        or result[-1] == 0
        or np.any(np.diff(result) <= 0)
    ):
        raise InvalidInput(
            f"times must be 0 or larger, increase, and end above 0; got {times}. Sort them."
        )
    return result


def order_parameter_flow(
    gamma: ArrayLike,
    overlap: ArrayLike,
    length: ArrayLike = 1.0,
    *,
    learning_rate: float,
    method: Method = "weight_norm",
    student: Student = "relu",
    zeta: float = 0.0,
) -> OrderParameters:
    r"""Compute the time derivatives of gain, overlap and length under online SGD (eqs. 6, 10).

    Weight norm with gamma decay:
    $$\dot\gamma = \eta I_1/\gamma - \eta\zeta\gamma, \quad
    \dot R = \frac{\eta\gamma}{L^2} I_3 - \frac{\eta R}{L^2} I_1 - \frac{\eta^2\gamma^2 R}{2L^4} I_2, \quad
    \dot L = \frac{\eta^2\gamma^2}{2L^3} I_2.$$
    Vanilla SGD, which the paper does not write out: the same $\dot R$ at $L = \gamma$, and
    $\dot\gamma = \dot L = \eta I_1/\gamma + \eta^2 I_2/2\gamma$.

    Gain, overlap and length (not used for SGD) broadcast.

    Args:
        gamma: Gain of the student, 0 or larger.
        overlap: Cosine R between student and teacher, in [-1, 1].
        length: Length L of the trained vector, positive; not used for SGD.
        learning_rate: Learning rate eta, positive.
        method: "weight_norm" or "sgd".
        student: Activation g of the student, "relu" or "linear"; the teacher's as well, or the teacher is linear.
        zeta: Gamma decay of the loss full square + $\zeta\gamma^2$, 0 or larger; 0 for SGD.
    """
    check_method(method, zeta)
    gains, overlaps = validate_order_parameters(gamma, overlap)
    name, argument = ("gamma", gains) if method == "sgd" else ("length", length)
    lengths = validate_array(name, argument, 0, low_open=True)
    return _flow(gains, overlaps, lengths, method, student, learning_rate, zeta)


def _flow(
    gamma: Numbers,
    overlap: Numbers,
    length: Numbers,
    method: Method,
    student: Student,
    rate: float,
    zeta: float,
) -> OrderParameters:
    radial, i2, i3 = order_parameter_averages(gamma, overlap, student)
    # A step of weight norm is dw = eta delta (gamma/L x - (wt^T x) w / (N L^2)) with wt = gamma w / L. As w^T dw = 0,
    # |w|^2 = N L^2 grows by |dw|^2 = eta^2 delta^2 gamma^2/L^2 x^T x: with t = steps/N this is
    # dL^2/dt = eta^2 gamma^2/L^2 I2, and dL/dt = (dL^2/dt) / 2L.
    growth = rate**2 * gamma**2 * i2 / (2 * length**3)
    # gamma descends by eta/N along delta (wt^T x)/gamma - zeta gamma, of which `radial` is the mean I1/gamma.
    gain = rate * (radial - zeta * gamma)
    # w^T w* / N = L R, hence d(LR)/dt = eta gamma/L I3 - eta R/L I1 and dR/dt = (d(LR)/dt - R dL/dt) / L.
    turn = rate * gamma / length**2 * (i3 - overlap * radial) - overlap * growth / length
    if (
        method == "sgd"
    ):  # w itself moves by eta delta x: d gamma^2/dt = 2 eta I1 + eta^2 I2 with L = gamma
        return OrderParameters(gain + growth, turn, gain + growth)
    return OrderParameters(gain, turn, growth)


def learning_dynamics(
    times: ArrayLike,
    *,
    learning_rate: float,
    method: Method = "weight_norm",
    student: Student = "relu",
    zeta: float = 0.0,
    gamma: float = 0.5,
    overlap: float = 0.2,
    length: float | None = None,
) -> Trajectory:
    r"""Integrate `order_parameter_flow`: gain, overlap and length over training time.

    Online SGD sees each sample x ~ N(0, I/N) once; t = samples/N. The loss per sample is the full square plus
    $\zeta\gamma^2$. SGD descends half of it, $w$ with step $\eta$ and $\gamma$ with step $\eta/N$. (The paper prints
    $\eta$ for $\gamma$, eq. 5; the equations follow from $\eta/N$ only.) The paper's batch norm is
    `method="weight_norm"` with `zeta=batch_norm_zeta(M, student=...)`, its weight norm has zeta = 0. Exact for $N \to
    \infty$; the mean of six simulated students is within 0.017 of each parameter at N = 1000. If gamma or L exceeds
    1e6, training has diverged and all later values are NaN.

    Args:
        times: Increasing times at which to report, 0 or larger.
        learning_rate: Learning rate eta, positive.
        method: "weight_norm" or "sgd".
        student: Activation g of the student, "relu" or "linear"; the teacher's as well, or the teacher is linear.
        zeta: Gamma decay of the loss full square + $\zeta\gamma^2$, 0 or larger; 0 for SGD.
        gamma: Gain of the student at time 0, 0 or larger.
        overlap: Cosine R between student and teacher at time 0, in [-1, 1].
        length: Length L of the trained vector at time 0; None for 1 (weight norm) or gamma (SGD).

    >>> path = learning_dynamics([0, 200], learning_rate=0.5, zeta=0.0)
    >>> bool(abs(path.gamma[-1] - 1) < 1e-6), bool(abs(path.overlap[-1] - 1) < 1e-6)
    (True, True)
    """
    check_method(method, zeta)
    check_range("learning_rate", learning_rate, 0, low_open=True)
    validate_order_parameters(gamma, overlap)
    moments = validate_times(times)
    state = np.array([gamma, overlap, start_length(method, gamma, length)])

    def rates(_: float, y: Float[np.ndarray, " 3"]) -> Float[np.ndarray, " 3"]:
        return np.stack(_flow(y[0], y[1], y[2], method, student, learning_rate, zeta))

    def bounded(_: float, y: Float[np.ndarray, " 3"]) -> float:
        return DIVERGED - max(y[0], y[2])

    bounded.terminal = True  # type: ignore[attr-defined]
    path = np.full((3, moments.size), np.nan)
    solution = solve_ivp(
        rates,
        (0.0, moments[-1]),
        state,
        method="DOP853",
        t_eval=moments,
        events=bounded,
        rtol=1e-10,
        atol=1e-12,
    )
    # If `bounded` stops the integration, `solution.y` has fewer columns than there are times; the rest stays NaN.
    values = np.reshape(solution.y, (3, -1))
    path[:, : values.shape[1]] = values
    path[1] = np.clip(path[1], -1, 1)
    return Trajectory(moments, *path)


def _roots(alpha: Numbers, ridge: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Return b = 1 - alpha - ridge, s = sqrt(b^2 + 4 ridge) and ridge * G = (b + s) / 2."""
    b = 1 - alpha - ridge
    s = np.sqrt(b**2 + 4 * ridge)
    # (b + s)(s - b) = s^2 - b^2 = 4 ridge: for b < 0 the quotient avoids the cancellation in b + s.
    with np.errstate(divide="ignore", invalid="ignore"):
        shrunk = np.where(b >= 0, (b + s) / 2, 2 * ridge / (s - b))[()]
    return b, s, shrunk


def resolvent_trace(alpha: ArrayLike, ridge: ArrayLike) -> Numbers:
    r"""Compute the response G of Gaussian samples, the trace of their resolvent.

    $G = \frac 1N \mathrm{tr}(X^\top X + \zeta I)^{-1}$ of $\alpha N$ samples x ~ N(0, I/N).

    $$G = \frac{1 - \alpha - \zeta + \sqrt{(\zeta + (1 + \sqrt\alpha)^2)(\zeta + (1 - \sqrt\alpha)^2)}}{2\zeta}$$

    Exact for $N \to \infty$ (sec. 4.1, after Krogh and Hertz, J. Phys. A 25, 1135, 1992).

    Args:
        alpha: Load P/N, samples per input, 0 or larger.
        ridge: The constant $\zeta$, 0 or larger; broadcasts with `alpha`. At 0 G is infinite for alpha up to 1.
    """
    ridges = validate_array("ridge", ridge, 0)
    b, s, shrunk = _roots(validate_array("alpha", alpha, 0), ridges)
    with np.errstate(divide="ignore", invalid="ignore"):
        # for b <= 0 the other form of the root, which is finite at ridge = 0
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
) -> Numbers:
    r"""Compute the mean squared error of a trained student over the load alpha (Fig. 1).

    The teacher is linear and noisy. Vanilla SGD is zeta = 0, weight norm with gamma decay is zeta > 0. With G of
    `resolvent_trace`:
    $$\epsilon_{lin}(\alpha, \zeta) = S\frac{\partial(\zeta G)}{\partial\zeta}
    - \zeta^2\frac{\partial G}{\partial\zeta}, \qquad
    \epsilon_{ReLU}(\alpha, \zeta) = \tfrac 12 + \tfrac 12\epsilon_{lin}(\alpha/2, \zeta)$$

    Convention: loss = full square, summed and divided by N, plus $\zeta\gamma^2$. The paper writes 1/P, but its curve
    is that of 1/N, lowest at $\zeta = S$; for 1/P pass $\alpha\zeta$.

    Linear: exact for $N \to \infty$ and the shortest of all minimizers. ReLU: exact for the student that fits its
    positive targets only, because $(x, y)$ and $(-x, -y)$ have the same weight in a linear fit: half of the samples act
    like $\alpha/2$ Gaussian ones. This is the paper's formula, extended to alpha > 2 and to zeta > 0. Gradient descent
    on a ReLU student also fits negative targets and reaches a lower error: 0.83, not 0.875, at alpha = 1 and zeta = 0.

    Args:
        alpha: Load P/N, samples per input, 0 or larger.
        student: Activation g of the student, "relu" or "linear"; the teacher is linear.
        noise_variance: Variance S of the label noise, 0 or larger.
        zeta: Gamma decay of the loss full square + $\zeta\gamma^2$, 0 or larger; 0 for SGD.

    >>> [float(error) for error in student_generalization([0.5, 1.0, 2.0])]
    [0.75, inf, 0.25]
    >>> round(float(student_generalization(1.0, zeta=0.25)), 8)
    0.3903882
    """
    active = activity(student)
    loads = validate_array("alpha", alpha, 0)
    noise = validate_array("noise_variance", noise_variance, 0)
    ridge = validate_array("zeta", zeta, 0)
    return 1 - active + active * _linear_error(active * loads, noise, ridge)
