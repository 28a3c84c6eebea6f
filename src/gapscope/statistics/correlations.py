r"""Correlation of each measure with the gap, with bootstrap intervals and size baseline.

One resample of the networks is a vector of counts $w$. Every coefficient is a function of $w$, so that all resamples
are evaluated together by matrix products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy
from jaxtyping import Float

from gapscope.base.errors import InvalidInput, check_range
from gapscope.base.tables import check_columns, check_comparable, with_numbers
from gapscope.statistics.intervals import (
    Clusters,
    Weights,
    cluster_bootstrap_weights,
    percentile_interval,
)

if TYPE_CHECKING:
    import pandas


Array = numpy.ndarray
PerResample = Float[Array, " b"]
Values = Float[Array, " n"]

# Singular values, entropies and standard deviations below this fraction of their scale are rounding of float32.
ROUNDING = 1e-6
# Relative difference of equal numbers that were summed in another order in float32; by judgment, ten times that of one.
SUMMED = 10 * ROUNDING
Coefficient = Callable[[Weights, Values, Values], PerResample]


def _is_tied(first: float, second: float, errors: Sequence[float]) -> bool:
    """Return whether two numbers differ by rounding, or by less than one of their standard errors."""
    difference = abs(second - first)
    rounding = SUMMED * max(abs(first), abs(second))
    if first % 1 == second % 1 == 0:
        rounding = 0.0
    is_small = difference <= rounding or any(difference < error for error in errors)
    return first == second or (math.isfinite(difference) and is_small)


def ranks_of(
    values: Mapping[str, float], errors: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Return the rank of each value, 1 for the smallest (NaN for NaN).

    Values share the better rank if they differ from the first of this rank by rounding alone, or by less than a
    standard error. Whole numbers are counts, without rounding.

    Args:
        values: Name -> value.
        errors: Name -> standard error; None if there are none.

    >>> ranks_of({"a": 3.0, "b": 1.000001, "c": 1.0, "d": 1.5}, {"a": 0.0, "b": 0.0, "c": 0.0, "d": 2.0})
    {'a': 4.0, 'b': 1.0, 'c': 1.0, 'd': 1.0}
    """
    ranks = dict.fromkeys(values, math.nan)
    errors = errors or {}
    known = [name for name, value in values.items() if not math.isnan(value)]
    first = None
    for place, name in enumerate(sorted(known, key=values.__getitem__), 1):
        pair = (first or name, name)
        of_pair = [errors.get(each, 0.0) for each in pair]
        if first is None or not _is_tied(values[first], values[name], of_pair):
            first = name
            ranks[name] = float(place)
        ranks[name] = ranks[first]
    return ranks


def _ratio(numerator: PerResample, first: PerResample, second: PerResample) -> PerResample:
    """Return numerator / sqrt(first * second), NaN where a variable is constant."""
    varies = (first > 1e-12) & (second > 1e-12)
    root = numpy.sqrt(numpy.where(varies, first * second, 1.0))
    return numpy.where(varies, numpy.clip(numerator / root, -1.0, 1.0), numpy.nan)


def weighted_pearson(
    weights: Float[Array, "#b n"], x: Float[Array, "#b n"], y: Float[Array, "#b n"]
) -> PerResample:
    """Return Pearson's correlation of each row of x and y under its row of weights."""
    total = weights.sum(1, keepdims=True)
    x = x - (weights * x).sum(1, keepdims=True) / total
    y = y - (weights * y).sum(1, keepdims=True) / total
    return _ratio((weights * x * y).sum(1), (weights * x * x).sum(1), (weights * y * y).sum(1))


def _standardized(values: Values) -> Values:
    values = values / (numpy.abs(values).max() or 1.0)
    values = values - values.mean()
    return values / (values.std() or 1.0)


def _pearson(weights: Weights, x: Values, y: Values) -> PerResample:
    return weighted_pearson(weights, _standardized(x)[None], _standardized(y)[None])


def _ties(weights: Weights, x: Values) -> tuple[Float[Array, "b g"], Clusters]:
    """Return counts of distinct values per resample, and the number of each network's value."""
    values, group = numpy.unique(x, return_inverse=True)
    order = numpy.argsort(group, kind="stable")
    starts = numpy.searchsorted(group[order], numpy.arange(len(values)))
    return numpy.add.reduceat(weights[:, order], starts, axis=1), group


def _ranks(weights: Weights, x: Values) -> Weights:
    """Return the mid-rank of every network in each resample (ties count half)."""
    counts, group = _ties(weights, x)
    return (numpy.cumsum(counts, axis=1) - counts / 2)[:, group]


def _spearman(weights: Weights, x: Values, y: Values) -> PerResample:
    return weighted_pearson(weights, _ranks(weights, x), _ranks(weights, y))


def _kendall(weights: Weights, x: Values, y: Values) -> PerResample:
    # float32 is exact here: signs and counts are whole numbers, and their sums stay below n
    signs = (numpy.sign(x[:, None] - x[None, :]) * numpy.sign(y[:, None] - y[None, :])).astype(
        numpy.float32
    )
    concordance = ((weights.astype(numpy.float32) @ signs) * weights).sum(1)

    def n_untied(values: Values) -> PerResample:
        return weights.sum(1) ** 2 - (_ties(weights, values)[0] ** 2).sum(1)

    return _ratio(concordance, n_untied(x), n_untied(y))


def kendall_tau(x: Values, y: Values) -> float:
    """Return Kendall's tau-b of two columns, exact (NaN if one is constant)."""
    return float(_kendall(numpy.ones((1, len(x))), x, y)[0])


def pearson_correlation(x: Values, y: Values) -> float:
    """Return Pearson's correlation, NaN for a constant column or fewer than three networks."""
    if len(x) < 3 or min(numpy.ptp(x), numpy.ptp(y)) <= 1e-15:
        return numpy.nan
    return float(_pearson(numpy.ones((1, len(x))), x, y)[0])


COEFFICIENTS: dict[str, Coefficient] = {
    "pearson": _pearson,
    "spearman": _spearman,
    "kendall": _kendall,
}


def _row(
    x: Array, y: Array, clusters: Clusters, n_bootstrap: int, seed: int, level: float
) -> dict[str, float]:
    finite = numpy.isfinite(x) & numpy.isfinite(y)
    x = x[finite]
    y = y[finite]
    n = len(x)
    row: dict[str, float] = {"n": n, "dropped": int((~finite).sum())}
    if n < 3:
        return row | {
            f"{name}{end}": numpy.nan for name in COEFFICIENTS for end in ("", "_low", "_high")
        }
    resamples = cluster_bootstrap_weights(
        numpy.unique(clusters[finite], return_inverse=True)[1], n_bootstrap, seed
    )
    for name, coefficient in COEFFICIENTS.items():
        row[name] = float(coefficient(numpy.ones((1, n)), x, y)[0])
        row[f"{name}_low"], row[f"{name}_high"] = percentile_interval(
            coefficient(resamples, x, y), level
        )
    return row


def correlations(
    table: pandas.DataFrame,
    measures: Sequence[str],
    *,
    target: str = "gap",
    n_bootstrap: int = 2000,
    seed: int = 0,
    baseline: str | None = "parameter_count",
    level: float = 0.95,
    clusters: Sequence[int] | Clusters | None = None,
) -> pandas.DataFrame:
    r"""Correlate each measure with the gap: Pearson, Spearman, Kendall's tau-b, intervals.

    $$\tau_b = \frac{\sum_{i<j} \operatorname{sign}(x_i - x_j)\operatorname{sign}(y_i - y_j)}
    {\sqrt{\#\{i<j: x_i \ne x_j\}\;\#\{i<j: y_i \ne y_j\}}}$$

    Spearman's is Pearson's between mid-ranks. The coefficients are exact; the intervals are percentile bootstrap
    intervals over clusters. Time and memory grow with the square of the number of networks.

    Args:
        table: One row per network, with the measures and the target as columns.
        measures: Columns to correlate with the target.
        target: Column that the measures are correlated with.
        n_bootstrap: Number of bootstrap resamples per interval.
        seed: Seed of the bootstrap.
        baseline: Column that is always correlated in addition to the measures; None for none.
        level: Nominal coverage of the intervals, in (0, 1).
        clusters: Number of each network's training configuration; None if each network has its own.

    Returns:
        One row per measure, indexed by its name: `n` networks used, `dropped` for a value that is not finite, and
        `pearson`, `pearson_low`, `pearson_high`, the same for `spearman` and `kendall` (NaN where the measure is
        constant or fewer than three networks are left), and `is_baseline`.

    Raises:
        InvalidInput: A column is missing, clusters are not one per network, or n_bootstrap or level is out of range.

    Kendall, "The treatment of ties in ranking problems", Biometrika 1945; Efron and Tibshirani 1993, section 13.3.
    """
    import pandas

    check_range("n_bootstrap", n_bootstrap, 1)
    check_range("level", level, 0, 1, low_open=True, high_open=True)
    if isinstance(measures, str):
        raise InvalidInput(
            f"measures must be a list of column names; got {measures!r}. Write [{measures!r}]."
        )
    names = [*measures]
    if baseline is not None and baseline not in names:
        names.append(baseline)
    check_columns(table, [*names, target])
    table = with_numbers(table, [*names, target])
    check_comparable(table[numpy.isfinite(table[target].to_numpy(dtype=float))], target)
    y = table[target].to_numpy(dtype=float)
    numbers = numpy.arange(len(y))
    if clusters is not None:
        numbers = numpy.asarray(clusters, dtype=int)
    if len(numbers) != len(y):
        raise InvalidInput(
            f"clusters must be one number per network, here {len(y)}; got {len(numbers)}."
        )
    rows = [
        _row(table[name].to_numpy(dtype=float), y, numbers, n_bootstrap, seed, level)
        for name in names
    ]
    result = pandas.DataFrame(rows, index=pandas.Index(names, name="measure"))
    return result.assign(is_baseline=[name == baseline for name in names])
