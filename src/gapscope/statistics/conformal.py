r"""Prediction intervals with a finite-sample guarantee, for any regression that can be refitted.

scikit-learn has none; the formulas below are those of the papers.
"""

from __future__ import annotations

import math

import numpy
from jaxtyping import Float

Array = numpy.ndarray


def _kth_smallest(values: Float[Array, "m n"], k: int) -> Float[Array, " m"]:
    """k-th smallest of each row, counting from 1; -inf before the first, +inf after the last."""
    n = values.shape[1]
    if 1 <= k <= n:
        return numpy.partition(values, k - 1, axis=1)[:, k - 1]
    return numpy.full(len(values), -numpy.inf if k < 1 else numpy.inf)


def jackknife_plus(
    left_out: Float[Array, "m n"], residuals: Float[Array, " n"], level: float, spread: Float[Array, " m"] | float = 1.0
) -> Float[Array, "m 2"]:
    r"""Jackknife+ interval of each new network.

    With $\hat\mu_{-i}$ fitted without network i and $R_i = |y_i - \hat\mu_{-i}(x_i)|$, the interval runs from the
    $\lfloor (1 - \text{level})(n+1) \rfloor$-th smallest $\hat\mu_{-i}(x) - R_i$ to the
    $\lceil \text{level}\,(n+1) \rceil$-th smallest $\hat\mu_{-i}(x) + R_i$.

    For exchangeable networks it covers with probability at least 2 level - 1, whatever the model and the
    distribution; in practice close to `level`. It is infinite where n < 1 / (1 - level) - 1.

    Args:
        left_out: Predictions of the m new networks by each of the n leave-one-out fits.
        residuals: Absolute leave-one-out residuals, each divided by its network's own spread if there are any.
        level: Nominal coverage.
        spread: Error that each new network is expected to have, in units of the residuals (Lei et al. 2018, sec. 5.2).

    Returns:
        Lower and upper ends, in units of the target.

    The same formula with fits that leave out a whole fold at a time is CV+, which covers with probability at least
    2 level - 1 - sqrt(2/n).

    Barber, Candès, Ramdas, Tibshirani, "Predictive inference with the jackknife+", 2021, eq. 1.4 and theorem 1; CV+ is
    section 3 and theorem 4.

    >>> jackknife_plus(numpy.zeros((1, 9)), numpy.arange(1.0, 10.0), 0.9)
    array([[-9.,  9.]])
    """
    n = len(residuals)
    residuals = numpy.broadcast_to(spread, len(left_out))[:, None] * residuals
    low = _kth_smallest(left_out - residuals, math.floor((1 - level) * (n + 1) + 1e-9))
    high = _kth_smallest(left_out + residuals, math.ceil(level * (n + 1) - 1e-9))
    return numpy.stack([low, high], axis=1)


def split_conformal(
    predictions: Float[Array, " m"],
    residuals: Float[Array, " n"],
    level: float,
    spread: Float[Array, " m"] | float = 1.0,
) -> Float[Array, "m 2"]:
    r"""Prediction plus and minus the $\lceil \text{level}\,(n+1) \rceil$-th smallest calibration residual.

    For exchangeable networks it covers with probability at least `level`, and at most level + 1/(n+1) where the
    residuals have no ties. It is infinite where n < level / (1 - level).

    Args:
        predictions: Predictions of the m new networks.
        residuals: Absolute residuals of n networks that the model was not fitted on, each divided by its network's own
            spread if there are any.
        level: Nominal coverage.
        spread: Error that each new network is expected to have, in units of the residuals.

    Returns:
        Lower and upper ends, in units of the target.

    Lei, G'Sell, Rinaldo, Tibshirani, Wasserman, "Distribution-free predictive inference", 2018, theorem 2.

    >>> split_conformal(numpy.array([1.0]), numpy.array([0.5, 0.1, 0.3]), 0.75)
    array([[0.5, 1.5]])
    """
    half = spread * _kth_smallest(residuals[None], math.ceil(level * (len(residuals) + 1) - 1e-9))
    return numpy.stack([predictions - half, predictions + half], axis=1)
