"""Bootstrap, cluster, conformal and binomial intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy
from jaxtyping import Float, Int

if TYPE_CHECKING:
    import pandas

Array = numpy.ndarray
Clusters = Int[Array, " n"]
# counts of each item in each bootstrap resample
Weights = Float[Array, "b n"]
# Less spread than this part of the largest value is rounding in float64, as in `gapscope.base.precision`.
CONSTANT = 1e-12


def bootstrap_weights(n: int, n_bootstrap: int, seed: int) -> Weights:
    """Return the number of times each of n items occurs in each bootstrap resample."""
    return (
        numpy.random.default_rng(seed)
        .multinomial(n, numpy.full(n, 1 / n), size=n_bootstrap)
        .astype(float)
    )


def cluster_bootstrap_weights(clusters: Clusters, n_bootstrap: int, seed: int) -> Weights:
    """Return the number of times each row occurs in each bootstrap resample of whole clusters."""
    return bootstrap_weights(int(clusters.max()) + 1, n_bootstrap, seed)[:, clusters]


def percentile_interval(
    resampled: Sequence[float] | Float[Array, " b"], level: float
) -> tuple[float, float]:
    """Return the central interval of the finite bootstrap values (NaN if there are none)."""
    values = numpy.asarray(resampled, dtype=float)
    values = values[numpy.isfinite(values)]
    if not len(values):
        return numpy.nan, numpy.nan
    low, high = numpy.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def configuration_ids(table: pandas.DataFrame, hyperparameters: Sequence[str]) -> Clusters:
    """Number the training configurations (equal hyperparameters, equal number)."""
    import pandas

    if not hyperparameters:
        return numpy.arange(len(table))
    rows = table[list(hyperparameters)].itertuples(index=False)
    return pandas.Series([tuple(map(str, row)) for row in rows], dtype=object).factorize()[0]


def members(clusters: Clusters) -> list[Int[Array, " m"]]:
    """Return the rows of each cluster."""
    return [
        numpy.flatnonzero(clusters == number) for number in range(int(clusters.max(initial=-1)) + 1)
    ]


def sample_configurations(clusters: Clusters, most: int, seed: int = 0) -> Int[Array, " m"]:
    """Return the rows of random whole configurations, at most `most` rows."""
    if len(clusters) <= most:
        return numpy.arange(len(clusters))
    sizes = numpy.bincount(clusters)
    order = numpy.random.default_rng(seed).permutation(len(sizes))
    # at least one configuration, however large
    n_configurations = max(
        1, int(numpy.searchsorted(numpy.cumsum(sizes[order]), most, side="right"))
    )
    return numpy.flatnonzero(numpy.isin(clusters, order[:n_configurations]))


def permutations(clusters: Clusters, count: int, seed: int) -> Iterator[Clusters]:
    """Yield random permutations of whole clusters: entry i is the row whose value row i gets.

    Clusters are exchanged with others of their size, and rows inside them are shuffled.
    """
    rng = numpy.random.default_rng(seed)
    sizes: dict[int, list[Int[Array, " m"]]] = {}
    for rows in members(clusters):
        sizes.setdefault(len(rows), []).append(rows)
    classes = [numpy.stack(rows) for rows in sizes.values()]
    for _ in range(count):
        order = numpy.arange(len(clusters))
        for rows in classes:
            order[rows] = rng.permuted(rng.permutation(rows), axis=1)
        yield order


def _kth_smallest(values: Float[Array, "m n"], k: int) -> Float[Array, " m"]:
    """Return the k-th smallest of each row (infinite outside 1 to n)."""
    n = values.shape[1]
    if 1 <= k <= n:
        return numpy.partition(values, k - 1, axis=1)[:, k - 1]
    return numpy.full(len(values), -numpy.inf if k < 1 else numpy.inf)


def jackknife_plus(
    left_out: Float[Array, "m n"],
    residuals: Float[Array, " n"],
    level: float,
    spread: Float[Array, " m"] | float = 1.0,
) -> Float[Array, "m 2"]:
    r"""Return the jackknife+ interval [m, 2] of each new network, in units of the target.

    With $\hat\mu_{-i}$ fitted without network i and $R_i = |y_i - \hat\mu_{-i}(x_i)|$, the interval runs from the
    $\lfloor (1 - \text{level})(n+1) \rfloor$-th smallest $\hat\mu_{-i}(x) - R_i$ to the
    $\lceil \text{level}\,(n+1) \rceil$-th smallest $\hat\mu_{-i}(x) + R_i$.

    For exchangeable networks the coverage is at least 2 level - 1, and in practice close to `level`. The interval is
    infinite if n < 1 / (1 - level) - 1. With fits that omit whole folds this is CV+, with a coverage of at least
    2 level - 1 - sqrt(2/n).

    Barber, Candès, Ramdas, Tibshirani, "Predictive inference with the jackknife+", 2021, eq. 1.4 and theorem 1; CV+ is
    section 3 and theorem 4.

    Args:
        left_out: Predictions [m, n] of the new networks by each leave-one-out fit.
        residuals: Absolute leave-one-out residuals [n], divided by the expected error of their network if `spread` is
            passed.
        level: Nominal coverage, in (0, 1).
        spread: Expected error of each new network, in units of the residuals (Lei et al. 2018, sec. 5.2).
    """
    n = len(residuals)
    residuals = numpy.broadcast_to(spread, len(left_out))[:, None] * residuals
    low = _kth_smallest(left_out - residuals, math.floor((1 - level) * (n + 1) + 1e-9))
    high = _kth_smallest(left_out + residuals, math.ceil(level * (n + 1) - 1e-9))
    return numpy.stack([low, high], axis=1)


def power_of_two(size: float) -> float:
    """Return the largest power of two up to a size (1 for 0, NaN and infinity).

    Values that are divided by it are of the order of 1, and are not rounded.

    Args:
        size: Any number of zero or more, such as a standard deviation.

    >>> power_of_two(1e-3) == 2**-10
    True
    """
    if not size or not math.isfinite(size):
        return 1.0
    return math.ldexp(1.0, math.frexp(size)[1] - 1)


def normal_quantile(level: float) -> float:
    """Return the two-sided quantile of the standard normal distribution, such as 1.645 for the level 0.9."""
    return statistics.NormalDist().inv_cdf((1 + level) / 2)


def student_quantile(level: float, degrees: int) -> float:
    """Return the two-sided quantile of Student's distribution, such as 1.943 for the level 0.9 and 6 degrees.

    >>> round(student_quantile(0.9, 6), 3)
    1.943
    """
    from scipy.special import stdtrit  # pyright: ignore[reportMissingTypeStubs]

    return float(stdtrit(degrees, (1 + level) / 2))


def wilson_interval(fraction: float, n: float, level: float = 0.9) -> tuple[float, float]:
    r"""Return Wilson's score interval of a binomial fraction.

    Its width is not 0 at the fractions 0 and 1. Wilson 1927, "Probable inference, the law of succession, and
    statistical inference".

    Args:
        fraction: Observed fraction; values outside [0, 1] are clipped.
        n: Number of samples, not necessarily an integer (an effective number).
        level: Nominal coverage.

    >>> [round(end, 3) for end in wilson_interval(0.0, 20)]
    [0.0, 0.119]
    """
    z = normal_quantile(level)
    fraction = min(max(fraction, 0.0), 1.0)
    middle = (fraction + z**2 / (2 * n)) / (1 + z**2 / n)
    reach = z * math.sqrt(fraction * (1 - fraction) / n + z**2 / (4 * n**2)) / (1 + z**2 / n)
    # exact at the ends, where rounding of the difference would put the fraction outside of its interval
    low = 0.0 if fraction == 0 else min(max(0.0, middle - reach), fraction)
    high = 1.0 if fraction == 1 else max(min(1.0, middle + reach), fraction)
    return low, high


def r_squared_scales(targets: Any) -> Float[Array, " k"]:
    r"""Return what residuals are divided by, so that $1 - \sum_j (r_{ij} / s_j)^2$ is the R² of sample i.

    R² of several targets is the mean over them, as the uniform average of scikit-learn, which does not depend on their
    units: $s_j$ is the standard deviation times the root of the number of targets. A target that is constant up to
    rounding has no R² (scikit-learn gives it 0 or 1) and is not counted: its scale is infinite.

    Args:
        targets: Targets [n, ...].

    >>> r_squared_scales([[0.0, 5, 0], [2, 5, 20]]) ** 2
    array([  2.,  inf, 200.])
    """
    values = numpy.asarray(targets, dtype=float)
    values = values.reshape(len(values), -1)
    largest = numpy.abs(values).max(0, initial=0.0)
    unit = numpy.array([power_of_two(float(each)) for each in largest])
    deviations = (values / unit).std(0)
    is_constant = ~(deviations > CONSTANT)
    counted = max(int((~is_constant).sum()), 1)
    return numpy.where(is_constant, numpy.inf, deviations * math.sqrt(counted) * unit)


def r_squared_interval(
    predictions: Float[Array, "n k"], targets: Float[Array, "n k"], level: float = 0.9
) -> tuple[float, float, float]:
    r"""Return $R^2$ and the ends of its interval, by the delta method.

    That of several targets is the mean over them (`r_squared_scales`). The interval is normal, with the standard error
    of the ratio of the mean squared error to the variance, and at most 1. NaN for targets that do not vary.

    Args:
        predictions: Predictions, of samples that they were not fitted to.
        targets: True values.
        level: Nominal coverage.

    >>> y = numpy.arange(8.0)[:, None]
    >>> r_squared_interval(y, y)
    (1.0, 1.0, 1.0)
    """
    targets = numpy.asarray(targets, dtype=float)
    scales = r_squared_scales(targets)
    if not numpy.isfinite(scales).any():
        return math.nan, math.nan, math.nan
    errors = ((targets - predictions) / scales) ** 2
    variances = ((targets - targets.mean(0)) / scales) ** 2
    counted = int(numpy.isfinite(scales).sum())
    ratios = errors.mean(0) * counted
    influence = (errors - ratios * variances).sum(1)
    reach = normal_quantile(level) * float(influence.std()) / math.sqrt(len(targets))
    value = 1 - float(errors.mean(0).sum())
    return value, value - reach, min(value + reach, 1.0)


def paired_difference_interval(
    only_first: float, only_second: float, n: float, level: float = 0.9
) -> tuple[float, float]:
    r"""Return Tango's score interval of the difference of two paired fractions.

    All differences d with $|b - c - n d| \le z \sqrt{n\,(2 q + d (1 - d))}$, where b samples are correct for the first
    only, c for the second only, and q is the fraction of the latter that is most likely if d is the difference. Its
    width is not 0 if b = c = 0. Tango 1998, "Equivalence test and confidence interval for the difference in proportions
    for the paired-sample design".

    Args:
        only_first: Number b of samples that only the first predicts correctly.
        only_second: Number c of samples that only the second predicts correctly.
        n: Number of pairs. All three need not be integers (an effective number of pairs and its parts).
        level: Nominal coverage.

    >>> [round(end, 3) for end in paired_difference_interval(0, 0, 20)]
    [-0.119, 0.119]
    """
    z = normal_quantile(level)

    def excess(difference: float) -> float:
        """Return the squared statistic minus its critical value."""
        linear = (2 * n - only_first + only_second) * difference - only_first - only_second
        constant = -only_second * difference * (1 - difference)
        root = math.sqrt(max(linear**2 - 8 * n * constant, 0.0))
        second = (root - linear) / (4 * n)
        variance = n * (2 * second + difference * (1 - difference))
        return (only_first - only_second - n * difference) ** 2 - z**2 * variance

    observed = (only_first - only_second) / n
    return _boundary(excess, observed, -1.0), _boundary(excess, observed, 1.0)


def _boundary(excess: Callable[[float], float], inside: float, outside: float) -> float:
    """Return the point of sign change between two points by bisection (the outer one if there is none)."""
    if excess(outside) <= 0:
        return outside
    for _ in range(60):
        middle = (inside + outside) / 2
        if excess(middle) > 0:
            outside = middle
        else:
            inside = middle
    return inside
