"""Bootstrap by weights, with percentile intervals.

Weights instead of resampled rows, because a coefficient of 2,000 resamples is then a few matrix products:
`scipy.stats.bootstrap` calls the statistic once per resample, or passes it copies of the rows.

Reference: Efron and Tibshirani 1993, section 13.3.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy
from jaxtyping import Float, Int

Array = numpy.ndarray


def resample_weights(n: int, n_bootstrap: int, seed: int) -> Float[Array, "b n"]:
    """Return how often each of n items occurs in each resample of n with replacement.

    >>> resample_weights(3, 2, 0).sum(1)
    array([3., 3.])
    """
    return numpy.random.default_rng(seed).multinomial(n, numpy.full(n, 1 / n), size=n_bootstrap).astype(float)


def cluster_weights(clusters: Int[Array, " n"], n_bootstrap: int, seed: int) -> Float[Array, "b n"]:
    """Return how often each row occurs in each resample of whole clusters with replacement.

    >>> drawn = cluster_weights(numpy.array([0, 0, 1, 2]), 5, 0)
    >>> bool((drawn[:, 0] == drawn[:, 1]).all())
    True
    """
    return resample_weights(int(clusters.max()) + 1, n_bootstrap, seed)[:, clusters]


def percentile_interval(drawn: Sequence[float] | Float[Array, " b"], level: float) -> tuple[float, float]:
    """Return the central interval of the finite values (NaN if there are none).

    >>> percentile_interval([0.0, 1.0, 2.0, 3.0, 4.0, float("nan")], 0.5)
    (1.0, 3.0)
    """
    values = numpy.asarray(drawn, dtype=float)
    values = values[numpy.isfinite(values)]
    if not len(values):
        return numpy.nan, numpy.nan
    low, high = numpy.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
