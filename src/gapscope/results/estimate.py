"""Numbers with their standard error or interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class Estimate(float):
    """Number of a measure: a float with a standard error.

    `standard_error` is None if the value is exact (up to rounding).

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
        return f"{float(self):.6g}" if self.exact else f"{float(self):.6g} ± {self.standard_error:.2g}"

    def __reduce__(self) -> tuple[Any, ...]:
        return Estimate, (float(self), self.standard_error)


def percent(fraction: float, digits: int = 0) -> str:
    """Format a fraction in percent, such as 12 %."""
    return f"{100 * fraction:.{digits}f} %"


@dataclass(frozen=True)
class IntervalEstimate:
    """Number with the ends of its interval."""

    value: float
    low: float
    high: float
