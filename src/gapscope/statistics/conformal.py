"""Conformal prediction intervals for any regression (not in scikit-learn)."""

from __future__ import annotations

import math

import numpy
from jaxtyping import Float

Array = numpy.ndarray


def _kth_smallest(values: Float[Array, "m n"], k: int) -> Float[Array, " m"]:
    """Return the k-th smallest of each row (infinite outside 1 to n)."""
    n = values.shape[1]
    if 1 <= k <= n:
        return numpy.partition(values, k - 1, axis=1)[:, k - 1]
    return numpy.full(len(values), -numpy.inf if k < 1 else numpy.inf)


def jackknife_plus(
    left_out: Float[Array, "m n"], residuals: Float[Array, " n"], level: float, spread: Float[Array, " m"] | float = 1.0
) -> Float[Array, "m 2"]:
    r"""Return the jackknife+ interval [m, 2] of each new network, in units of the target.

    With $\hat\mu_{-i}$ fitted without network i and $R_i = |y_i - \hat\mu_{-i}(x_i)|$, the interval runs from the
    $\lfloor (1 - \text{level})(n+1) \rfloor$-th smallest $\hat\mu_{-i}(x) - R_i$ to the
    $\lceil \text{level}\,(n+1) \rceil$-th smallest $\hat\mu_{-i}(x) + R_i$.

    For exchangeable networks the coverage is at least 2 level - 1, for any model and distribution; in practice close to
    `level`. The interval is infinite if n < 1 / (1 - level) - 1. With fits that omit a whole fold each, the formula is
    CV+, with coverage at least 2 level - 1 - sqrt(2/n).

    Barber, Candès, Ramdas, Tibshirani, "Predictive inference with the jackknife+", 2021, eq. 1.4 and theorem 1; CV+ is
    section 3 and theorem 4.

    Args:
        left_out: Predictions [m, n] of the new networks by each leave-one-out fit.
        residuals: Absolute leave-one-out residuals [n], each divided by its network's own spread if there are any.
        spread: Expected error of each new network, in units of the residuals (Lei et al. 2018, sec. 5.2).

    >>> jackknife_plus(numpy.zeros((1, 9)), numpy.arange(1.0, 10.0), 0.9)
    array([[-9.,  9.]])
    """
    n = len(residuals)
    residuals = numpy.broadcast_to(spread, len(left_out))[:, None] * residuals
    low = _kth_smallest(left_out - residuals, math.floor((1 - level) * (n + 1) + 1e-9))
    high = _kth_smallest(left_out + residuals, math.ceil(level * (n + 1) - 1e-9))
    return numpy.stack([low, high], axis=1)
