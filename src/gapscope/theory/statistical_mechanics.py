"""Order parameters and the equations of statistical mechanics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.optimize import root_scalar

from gapscope.base.errors import InvalidInput, check_choice, check_range, describe_value

Student = Literal["relu", "linear"]
if TYPE_CHECKING:
    Numbers = np.ndarray
else:
    # arithmetic on 0-d arrays returns NumPy scalars
    Numbers = Float[np.ndarray | np.float64, "..."]


class OrderParameterIntegrals(NamedTuple):
    """Averages I1, I2, I3 that drive learning, see `order_parameter_integrals`.

    Attributes:
        i1: I1, the average of the error times the student's pre-activation.
        i2: I2, the average of the squared error times that of the inputs.
        i3: I3, the average of the error times the teacher's pre-activation.
    """

    i1: Numbers
    i2: Numbers
    i3: Numbers


def activity(student: Student) -> float:
    """Return the activity E[g'(s)] = E[g(s)^2] / gamma^2: 1/2 for ReLU, 1 for linear."""
    check_choice("student", student, ("relu", "linear"))
    if student == "relu":
        return 0.5
    return 1.0


def as_numbers(parameter: str, argument: ArrayLike) -> Numbers:
    """Return an argument as float64, or raise InvalidInput if it holds no numbers."""
    try:
        return np.asarray(argument, np.float64)
    except (TypeError, ValueError):
        if isinstance(argument, list | tuple):
            shown = describe_value(argument)
        else:
            shown = repr(argument)
        raise InvalidInput(
            f"{parameter} must be a number, or an array of numbers; got {shown}."
        ) from None


def validate_array(
    parameter: str, argument: ArrayLike, low: float, *, low_open: bool = False
) -> Numbers:
    """Return an argument as float64, or raise InvalidInput for values below `low` and NaN."""
    values = as_numbers(parameter, argument)
    if values.size:
        check_range(parameter, float(values.min()), low, low_open=low_open)
    return values


def validate_order_parameters(gamma: ArrayLike, overlap: ArrayLike) -> tuple[Numbers, Numbers]:
    """Return gain (0 or larger) and overlap (in [-1, 1]) as float64, or raise InvalidInput."""
    gains = validate_array("gamma", gamma, 0)
    overlaps = as_numbers("overlap", overlap)
    if not np.all(np.abs(overlaps) <= 1):
        raise InvalidInput(
            f"overlap must be in [-1, 1]; got {overlaps}. It is a cosine: divide by both lengths."
        )
    return gains, overlaps


def output_correlations(overlap: Numbers, student: Student) -> tuple[Numbers, Numbers]:
    r"""Return $E[g(s) g(t)] / \gamma$ and $E[g'(s) g(t)\, t]$ at overlap R."""
    # ReLU: (pi R + 2 r + 2 R arcsin R) / 4 pi and (pi + 2 R r + 2 arcsin R) / 4 pi, r = sqrt(1 - R^2); linear: R and 1.
    # For unit Gaussians at the angle a = arccos R the arc-cosine kernel (Cho and Saul 2009) gives E[relu(s) relu(t)] =
    # (sin a + (pi - a) cos a) / 2 pi and E[1(s > 0) relu(t)^2] = (pi - a + sin a cos a) / 2 pi, here with pi - a = pi/2
    # + arcsin R. The second is E[g'(s) g(t) t], since g(t) t = g(t)^2.
    if student == "linear":
        return overlap, np.ones_like(overlap)
    cosine = np.clip(overlap, -1, 1)
    sine = np.sqrt(1 - cosine**2)
    angle = np.arcsin(cosine)
    outputs = (np.pi * cosine + 2 * sine + 2 * cosine * angle) / (4 * np.pi)
    teacher = (np.pi + 2 * cosine * sine + 2 * angle) / (4 * np.pi)
    return outputs, teacher


def correlation_slopes(overlap: Numbers, student: Student) -> tuple[Numbers, Numbers]:
    r"""Return the derivatives by R of `output_correlations`, from below at R = 1."""
    # Price's theorem: d E[g(s) g(t)]/dR = E[g'(s) g'(t)], for ReLU the fraction of inputs at which both are active.
    # The second slope by hand: d(R r + arcsin R)/dR = (r - R^2/r) + 1/r = 2 r.
    if student == "linear":
        return np.ones_like(overlap), np.zeros_like(overlap)
    cosine = np.clip(overlap, -1, 1)
    return (np.pi + 2 * np.arcsin(cosine)) / (4 * np.pi), np.sqrt(1 - cosine**2) / np.pi


def order_parameter_averages(
    gamma: Numbers, overlap: Numbers, student: Student
) -> tuple[Numbers, Numbers, Numbers]:
    """Return I1 / gamma, I2 and I3 of `order_parameter_integrals` without checks."""
    active = activity(student)
    outputs, teacher = output_correlations(overlap, student)
    # With g'(s) s = g(s) and g'(s)^2 = g'(s) the averages reduce to E[g(s) g(t)] = gamma c1, E[g(s)^2] = h gamma^2 and
    # E[g'(s) g(t) t] = E[g'(s) g(t)^2] = c3. I3 also contains E[g(s) t] = h gamma R, because t is R s / gamma plus a
    # part independent of s.
    squares = teacher + active * gamma**2 - 2 * gamma * outputs
    return outputs - active * gamma, squares, teacher - active * gamma * overlap


def order_parameter_integrals(
    gamma: ArrayLike, overlap: ArrayLike, *, student: Student = "relu"
) -> OrderParameterIntegrals:
    r"""Compute the averages I1, I2, I3 that drive learning, at any gain and overlap.

    $$I_1 = E[\delta\, \tilde w^\top x], \quad I_2 = E[\delta^2 x^\top x], \quad I_3 = E[\delta\, w^{*\top} x], \qquad
    \delta = g'(\tilde w^\top x)\,[g(w^{*\top} x) - g(\tilde w^\top x)]$$

    With $(c_1, c_3)$ of `output_correlations` and $h$ of `activity`: $I_1 = \gamma c_1 - h\gamma^2$,
    $I_2 = c_3 + h\gamma^2 - 2\gamma c_1$, $I_3 = c_3 - h\gamma R$. Exact for $N \to \infty$ (where $x^\top x = 1$).
    The paper's eqs. 13 to 15, with the middle term of $I_2$ for ReLU corrected: the paper prints $\pi R + 2Rr +
    2\arcsin R$ for $\pi + 2Rr + 2\arcsin R$, which is off by up to 0.4 and correct at R = 1 only.

    Args:
        gamma: Gain of the student, 0 or larger.
        overlap: Cosine R between student and teacher, in [-1, 1].
        student: Activation g of the student, "relu" or "linear"; the teacher's as well, or the teacher is linear.
    """
    gains, overlaps = validate_order_parameters(gamma, overlap)
    radial, i2, i3 = order_parameter_averages(gains, overlaps, student)
    return OrderParameterIntegrals(gains * radial, i2, i3)


def generalization_error(
    gamma: ArrayLike, overlap: ArrayLike, *, student: Student = "linear"
) -> Numbers:
    r"""Compute the mean squared error on fresh noise-free outputs of a linear teacher.

    $$\epsilon(\gamma, R) = E_x[(w^{*\top} x - g(\tilde w^\top x))^2] = 1 + h\gamma^2 - 2h\gamma R$$

    with $h$ of `activity`: eq. 18 (linear student) and appendix D.1 (ReLU). Full square, not halved; exact for Gaussian
    inputs at any N. Label noise of variance S adds S to the error on noisy outputs.

    Args:
        gamma: Gain of the student, 0 or larger.
        overlap: Cosine R between student and teacher, in [-1, 1].
        student: Activation g of the student, "relu" or "linear"; the teacher is linear.
    """
    gains, overlaps = validate_order_parameters(gamma, overlap)
    # ReLU halves both E[g(s)^2] and E[g(s) t]: x and -x contribute the same products, and only one of them is active.
    active = activity(student)
    return 1 + active * gains**2 - 2 * active * gains * overlaps


@dataclass(frozen=True)
class Equilibrium:
    r"""Saddle point of the free energy.

    Attributes:
        gamma: Length of the mean student over sqrt(N).
        overlap: Cosine R of the mean student with the teacher.
        spread: $D = q^2 - \gamma^2$, what the temperature adds to the squared length.
        a: The paper's $a = 1 + T/D$; 1 where the training error is 0.
        student: Activation of the student, "relu" or "linear".
    """

    gamma: float
    overlap: float
    spread: float
    a: float
    student: Student

    @property
    def length(self) -> float:
        """Length q of one student sampled at this temperature."""
        return float(np.sqrt(self.gamma**2 + self.spread))

    @property
    def generalization_error(self) -> float:
        """Error of the mean student (a sampled one adds its spread, times 1/2 for ReLU)."""
        return float(generalization_error(self.gamma, self.overlap, student=self.student))


def free_energy(
    gamma: float,
    overlap: float,
    length: float,
    *,
    alpha: float,
    temperature: float,
    noise_variance: float = 0.25,
    student: Student = "relu",
) -> float:
    r"""Compute the free energy f per input at temperature T = 1/beta (Proposition 5, eq. 21).

    $$-\beta f = \frac{\gamma^2 - \gamma^2 R^2}{2D} + \frac{\ln D}{2} - \frac c2 \ln(1 + \beta D)
    - \frac c2\,\beta\,\frac{1 - 2\gamma R + \gamma^2 + S}{1 + \beta D}, \qquad D = q^2 - \gamma^2$$

    with $c = \alpha/2$ for ReLU and $\alpha$ for linear students, and q the `length`, above gamma. Exact for $N \to
    \infty$ and the linear student; a ReLU student is assumed to fit its positive targets only, as the paper assumes for
    low temperatures; the constant that the negative targets add is omitted.

    Args:
        gamma: Length of the mean student over sqrt(N), 0 or larger and below `length`.
        overlap: Cosine R between student and teacher, in [-1, 1].
        length: Length q of one student over sqrt(N).
        alpha: Load P/N, samples per input, 0 or larger.
        temperature: Temperature T of the student, positive.
        noise_variance: Variance S of the label noise, 0 or larger.
        student: Activation g of the student, "relu" or "linear"; the teacher is linear.
    """
    check_range("temperature", temperature, 0, low_open=True)
    check_range("gamma", gamma, 0, length, high_open=True)
    check_range("overlap", overlap, -1, 1)
    check_range("alpha", alpha, 0)
    check_range("noise_variance", noise_variance, 0)
    load = activity(student) * alpha
    spread = length**2 - gamma**2
    beta = 1 / temperature
    error = 1 - 2 * gamma * overlap + gamma**2 + noise_variance
    entropy = (gamma**2 * (1 - overlap**2) / spread + np.log(spread)) / 2
    energy = load / 2 * (np.log1p(beta * spread) + beta * error / (1 + beta * spread))
    return -temperature * float(entropy - energy)


def _gamma_squared(a: float, load: float, noise_variance: float) -> float:
    # Stationarity in gamma at fixed q: gamma^2 - m^2 = (load / a^2) (1 - 2 m + gamma^2 + S), m = gamma R = load / a.
    return (load**2 + load * (1 - 2 * load / a + noise_variance)) / (a**2 - load)


def _at_length(
    load: float, noise_variance: float, temperature: float, length: float
) -> tuple[float, float]:
    """Return a and D with gamma^2(a) + D = q^2 and D = T / (a - 1), by root finding in a."""
    if (
        temperature == 0 and load < 1
    ):  # a perfect fit exists: a = 1, unless the length is too short for it
        slack = length**2 - _gamma_squared(1.0, load, noise_variance)
        if slack >= 0:
            return 1.0, slack
    # D > 0 needs a > 1, and gamma^2(a) has its pole at sqrt(load): the root is above both, so search log(a - lowest)
    lowest = max(1.0, load**0.5)

    def excess(log_distance: float) -> float:
        distance = np.exp(log_distance)
        spread = temperature / (lowest - 1 + distance)
        return _gamma_squared(lowest + distance, load, noise_variance) + spread - length**2

    a = lowest + float(
        np.exp(root_scalar(excess, bracket=(-34.0, 60.0), method="brentq", xtol=1e-13).root)
    )
    return a, temperature / (a - 1)


def equilibrium(
    alpha: float,
    *,
    temperature: float = 0.0,
    length: float | None = None,
    noise_variance: float = 0.25,
    student: Student = "relu",
) -> Equilibrium:
    r"""Compute the saddle point of `free_energy`: a student in equilibrium at temperature T.

    With $c = \alpha/2$ for ReLU, $\alpha$ for linear students, and $a = 1 + T/D$:
    $$\gamma R = \frac ca\ \text{(eq. 23)}, \qquad \gamma^2 = \frac{c^2 + c\,(1 - 2c/a + S)}{a^2 - c}$$
    and a solves $q^2 = \gamma^2 + T/(a - 1)$. The second equation is corrected: the printed eqs. 22 and 24 agree with
    it at a = 1 only. A student of fixed length q is ridge regression with the constant $\lambda$ for which $G(c,
    \lambda) = 1/(a - 1)$ (`resolvent_trace`); without a fixed length $a = \max(1, c)$, as in `student_generalization`
    at zeta = 0. Exact saddle, to 1e-12.

    Args:
        alpha: Load P/N, samples per input, 0 or larger.
        temperature: Temperature T of the student.
        length: q, positive. None: the length that also makes f stationary, for c < 1 (which has one at T = 0 only)
            the shortest perfect fit.
        noise_variance: Variance S of the label noise.
        student: Activation g of the student, "relu" or "linear"; the teacher's as well, or the teacher is linear.

    Raises:
        InvalidInput: No finite length at this load and temperature.

    >>> point = equilibrium(1.2)
    >>> round(point.gamma * point.overlap, 12), round(point.gamma**2, 12), round(point.generalization_error, 12)
    (0.6, 0.975, 0.8875)
    """
    check_range("alpha", alpha, 0)
    check_range("noise_variance", noise_variance, 0)
    check_range("temperature", temperature, 0)
    load = activity(student) * alpha
    if length is not None:
        check_range("length", length, 0, low_open=True)
        a, spread = _at_length(load, noise_variance, temperature, length)
    elif load == 1 or (load < 1 and temperature > 0):
        raise InvalidInput(
            f"alpha must exceed {1 / activity(student):g} if length is None; got {alpha} at temperature {temperature}, "
            "where lengths grow without bound. Pass length."
        )
    else:
        a, spread = (load, temperature / (load - 1)) if load > 1 else (1.0, 0.0)
    gamma = _gamma_squared(a, load, noise_variance) ** 0.5
    return Equilibrium(gamma, load / (a * gamma) if gamma else 0.0, spread, a, student)
