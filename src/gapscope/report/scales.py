"""From values to positions: linear and logarithmic scales with round ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

# Larger numbers are plotted at this one: their squares and differences overflow.
LARGEST = 1e100


def clip_to_drawable(value: float) -> float:
    """Return the value, or the largest of its sign that can be drawn."""
    return min(max(value, -LARGEST), LARGEST)


@dataclass(frozen=True)
class Scale:
    """An axis from `low` to `high`.

    >>> Scale(0.0, 2.0).percent(0.5), Scale(1.0, 100.0, logarithmic=True).percent(10.0)
    (25.0, 50.0)
    """

    low: float
    high: float
    logarithmic: bool = False

    @classmethod
    def around(cls, values: Iterable[float], *, logarithmic: bool = False, padding: float = 0.06) -> Scale:
        """Return a scale around all finite values (positive ones if logarithmic; else around 0 to 1).

        `padding` on each side is a fraction of the range.
        """
        finite = [
            clip_to_drawable(value) for value in values if math.isfinite(value) and (value > 0 or not logarithmic)
        ]
        low, high = (min(finite), max(finite)) if finite else (1.0, 10.0) if logarithmic else (0.0, 1.0)
        if logarithmic:
            margin = padding * math.log(high / low) or math.log(2)
            return cls(low * math.exp(-margin), high * math.exp(margin), logarithmic=True)
        margin = padding * (high - low) or abs(high) * 0.1 or 1.0
        return cls(low - margin, high + margin)

    def percent(self, value: float) -> float:
        """Position of a value, in percent of the axis."""
        value = clip_to_drawable(value)
        if self.logarithmic:
            return 100 * math.log(value / self.low) / math.log(self.high / self.low)
        return 100 * (value - self.low) / (self.high - self.low)

    def ticks(self, about: int = 5) -> list[float]:
        """Return about that many round values inside the scale.

        >>> Scale(-0.03, 0.62).ticks(), Scale(0.5, 2000.0, logarithmic=True).ticks()
        ([0.0, 0.2, 0.4, 0.6], [1.0, 10.0, 100.0, 1000.0])
        """
        # matplotlib's locators give ticks outside the scale too, and load matplotlib for every report
        if self.logarithmic:
            decades = range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)
            if len(decades) >= 3:
                return [10.0**k for k in decades][:: math.ceil(len(decades) / about)]
            finer = [m * 10.0**k for k in range(decades.start - 1, decades.stop + 1) for m in (1, 2, 5)]
            inside = [value for value in finer if self.low <= value <= self.high]
            if len(inside) >= 2:
                return inside
        step = 10 ** math.floor(math.log10((self.high - self.low) / about))
        step *= next(m for m in (1, 2, 5, 10) if (self.high - self.low) / (m * step) <= about)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [float(f"{k * step:.12g}") for k in range(first, last + 1)]
