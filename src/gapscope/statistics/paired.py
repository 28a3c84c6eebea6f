"""Means of paired differences."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy

from gapscope.results.estimate import IntervalEstimate

# two-sided 90 %, one-sided 95 %
NORMAL_90 = 1.645


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
