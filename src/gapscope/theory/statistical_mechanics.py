r"""Free energy of a one-layer student and its saddle point (Proposition 5).

A student whose weights follow $p(w) \propto e^{-E(w)/T}$, E the halved sum of squares over P noisy samples of a
linear teacher, has three order parameters: $\gamma^2$ (product of two independent students), $\gamma R$
(product with the teacher) and $q^2 = \|w\|^2/N$, fixed by the prior. A ReLU student counts its positive targets only:
a linear one of load $\alpha/2$.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import root_scalar

from gapscope.base.errors import InvalidInput, check_range
from gapscope.theory.order_parameters import Student, activity, generalization_error


@dataclass(frozen=True)
class Equilibrium:
    r"""Saddle point of the free energy.

    Attributes:
        gamma: $\gamma$, length of the mean student over sqrt(N).
        overlap: Cosine R between mean student and teacher.
        spread: $D = q^2 - \gamma^2$, what the temperature adds to the squared length.
        a: The paper's $a = 1 + T/D$; 1 where the training error is 0.
        student: Activation of the student.
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

    with $c = \alpha/2$ for ReLU and $\alpha$ for linear students; the constant of the unfitted negative targets is
    omitted. Exact for $N \to \infty$ and the linear student; a ReLU student is assumed to fit its positive targets
    only, as the paper does for low temperatures.

    Args:
        gamma: $\gamma$, below `length`.
        length: q.

    >>> free_energy(0.0, 0.0, 1.0, alpha=0.0, temperature=1.0)
    -0.0
    """
    check_range("temperature", temperature, 0, low_open=True)
    check_range("gamma", gamma, 0, length, high_open=True)
    check_range("overlap", overlap, -1, 1)
    load = _load(alpha, noise_variance, student)
    spread, beta = length**2 - gamma**2, 1 / temperature
    error = 1 - 2 * gamma * overlap + gamma**2 + noise_variance
    entropy = (gamma**2 * (1 - overlap**2) / spread + np.log(spread)) / 2
    energy = load / 2 * (np.log1p(beta * spread) + beta * error / (1 + beta * spread))
    return -temperature * float(entropy - energy)


def _load(alpha: float, noise_variance: float, student: Student) -> float:
    check_range("alpha", alpha, 0)
    check_range("noise_variance", noise_variance, 0)
    return activity(student) * alpha


def _gamma_squared(a: float, load: float, noise_variance: float) -> float:
    # Stationarity in gamma at fixed q: gamma^2 - m^2 = (load / a^2) (1 - 2 m + gamma^2 + S), m = gamma R = load / a.
    return (load**2 + load * (1 - 2 * load / a + noise_variance)) / (a**2 - load)


def _at_length(load: float, noise_variance: float, temperature: float, length: float) -> tuple[float, float]:
    """Return a and D with gamma^2(a) + D = q^2 and D = T / (a - 1), by root finding in a."""
    if temperature == 0 and load < 1:
        slack = length**2 - _gamma_squared(1.0, load, noise_variance)
        if slack >= 0:
            return 1.0, slack
    lowest = max(1.0, load**0.5)

    def excess(log_distance: float) -> float:
        distance = np.exp(log_distance)
        spread = temperature / (lowest - 1 + distance)
        return _gamma_squared(lowest + distance, load, noise_variance) + spread - length**2

    a = lowest + float(np.exp(root_scalar(excess, bracket=(-34.0, 60.0), method="brentq", xtol=1e-13).root))
    return a, temperature / (a - 1)


def _at_free_length(alpha: float, temperature: float, student: Student) -> tuple[float, float]:
    load = activity(student) * alpha
    if load == 1 or (load < 1 and temperature > 0):
        raise InvalidInput(
            f"alpha must exceed {1 / activity(student):g} where no length is given; got {alpha} at temperature "
            f"{temperature}; lengths grow without bound. Pass length."
        )
    return (load, temperature / (load - 1)) if load > 1 else (1.0, 0.0)


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
    and a solves $q^2 = \gamma^2 + T/(a - 1)$. The second is corrected: the printed eqs. 22 and 24 agree with it at a
    = 1 only. A student of fixed length q is ridge regression with the constant $\lambda$ for which $G(c, \lambda) =
    1/(a - 1)$ (`resolvent_trace`); without a fixed length $a = \max(1, c)$, the end of `student_generalization` at
    zeta = 0. Exact saddle, to 1e-12.

    Args:
        length: q, positive. None: the length that also makes f stationary, for c < 1 (which has one at T = 0 only)
            the shortest perfect fit.

    Raises:
        InvalidInput: A value outside its range, or no finite length at this load and temperature.

    >>> point = equilibrium(1.2)
    >>> round(point.gamma * point.overlap, 12), round(point.gamma**2, 12), round(point.generalization_error, 12)
    (0.6, 0.975, 0.8875)
    """
    load = _load(alpha, noise_variance, student)
    check_range("temperature", temperature, 0)
    if length is None:
        a, spread = _at_free_length(alpha, temperature, student)
    else:
        check_range("length", length, 0, low_open=True)
        a, spread = _at_length(load, noise_variance, temperature, length)
    gamma = _gamma_squared(a, load, noise_variance) ** 0.5
    return Equilibrium(gamma, load / (a * gamma) if gamma else 0.0, spread, a, student)
