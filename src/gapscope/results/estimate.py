"""Numbers with their standard error or interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class Estimate(float):
    """Number of a measure: a float with a standard error.

    Args:
        value: The number.
        standard_error: Its standard error, in the same units; None if the value is exact (up to rounding).

    >>> trace = Estimate(2.0, standard_error=0.1)
    >>> trace + 1, trace
    (3.0, 2 ± 0.1)
    """

    standard_error: float | None

    def __new__(cls, value: float, standard_error: float | None = None) -> Estimate:
        """Create the float and attach its standard error."""
        estimate = super().__new__(cls, value)
        estimate.standard_error = None if standard_error is None else float(standard_error)
        return estimate

    @property
    def exact(self) -> bool:
        """True if the value was computed exactly, not estimated."""
        return self.standard_error is None

    def __repr__(self) -> str:
        if self.exact:
            return f"{float(self):.6g}"
        return f"{float(self):.6g} ± {self.standard_error:.2g}"

    def __reduce__(self) -> tuple[Any, ...]:
        return Estimate, (float(self), self.standard_error)


def percent(fraction: float, digits: int = 0) -> str:
    """Format a fraction in percent, such as 12 %."""
    return f"{100 * fraction:.{digits}f} %"


def percents_apart(first: float, second: float, *others: float) -> tuple[str, ...]:
    """Format fractions in percent, with as many digits as tell the first two apart (at most three)."""
    n = next((n for n in range(3) if percent(first, n) != percent(second, n)), 3)
    return tuple(percent(fraction, n) for fraction in (first, second, *others))


@dataclass(frozen=True)
class IntervalEstimate:
    """Number with the ends of its interval.

    Attributes:
        value: The number.
        low: Lower end of the interval, in the same units.
        high: Upper end.
    """

    value: float
    low: float
    high: float


# normal quantiles: two-sided 90 % and one-sided 95 %; two-sided 95 %; one-sided 99 %
NORMAL_90, NORMAL_95, NORMAL_99_ONE_SIDED = 1.645, 1.96, 2.326


def paired_difference(
    values: Sequence[float], baseline: Sequence[float] | None = None
) -> IntervalEstimate:
    """Return the mean of paired differences with a normal 90 % interval.

    The variance counts half a discordant pair in each direction more than there is, so that methods that agree on all
    samples do not get an interval of width 0.

    Args:
        values: One value per sample, in units of a sample: 1 for correct and 0 for wrong, or weights of these.
        baseline: Values of the other method on the same samples; None for zeros.

    >>> paired_difference([1.0] * 50 + [0.0] * 50, [0.0] * 100)
    IntervalEstimate(value=0.5, low=0.4161211290013987, high=0.5838788709986014)
    """
    n = len(values)
    if baseline is None:
        baseline = [0.0] * n
    differences = [float(a) - float(b) for a, b in zip(values, baseline, strict=True)]
    mean = math.fsum(differences) / n
    variance = (math.fsum((difference - mean) ** 2 for difference in differences) + 1) / n
    reach = NORMAL_90 * math.sqrt(variance / n)
    return IntervalEstimate(mean, mean - reach, mean + reach)
