"""Intervals of proportions and of paired differences."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy

from gapscope.results.estimate import IntervalEstimate

# two-sided 90 %, one-sided 95 %
NORMAL_90 = 1.645


def wilson_interval(rate: float, n: float, z: float = NORMAL_90) -> tuple[float, float]:
    """Return Wilson's (1927) score interval of a proportion.

    It has a width at proportions of 0 and 1, where the normal interval has none.

    Args:
        rate: Observed proportion, in [0, 1].
        n: Number of observations, above 0.
        z: Normal quantile; the default is that of a two-sided 90 % interval.

    >>> [round(end, 3) for end in wilson_interval(0.0, 1)]
    [0.0, 0.73]
    """
    middle = (rate + z**2 / (2 * n)) / (1 + z**2 / n)
    reach = z * math.sqrt(rate * (1 - rate) / n + z**2 / (4 * n**2)) / (1 + z**2 / n)
    return max(0.0, middle - reach), min(1.0, middle + reach)


def paired_difference(
    values: Sequence[float] | numpy.ndarray, baseline: Sequence[float] | numpy.ndarray, z: float = NORMAL_90
) -> IntervalEstimate:
    """Return the mean of paired differences with a normal interval.

    The variance counts one discordant pair more than there is, half in each direction, so that networks that agree on
    all samples do not get an interval of width 0.

    Args:
        values: One value per sample, such as 1 for correct and 0 for wrong.
        baseline: Values of the other method on the same samples.
        z: Normal quantile; the default is that of a two-sided 90 % interval.
    """
    difference = numpy.asarray(values, dtype=float) - numpy.asarray(baseline, dtype=float)
    n = len(difference)
    mean = float(difference.mean())
    variance = (float(numpy.square(difference - mean).sum()) + 1) / n
    reach = z * math.sqrt(variance / n)
    return IntervalEstimate(mean, mean - reach, mean + reach)
