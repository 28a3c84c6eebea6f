"""Student's interval of the mean of a few runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats


def t_interval(values: Sequence[float]) -> tuple[float, float]:
    """Two-sided 95 % interval of the mean of independent values, by Student's t.

    Args:
        values: One value a run.

    Returns:
        Lower and upper end; infinite for fewer than two values, and where one is not finite.

    >>> [round(end, 4) for end in t_interval([1.0, 2.0, 3.0])]
    [-0.4841, 4.4841]
    """
    if len(values) < 2 or not np.isfinite(values).all():
        return -math.inf, math.inf
    half = float(stats.t.ppf(0.975, len(values) - 1)) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return float(np.mean(values)) - half, float(np.mean(values)) + half
