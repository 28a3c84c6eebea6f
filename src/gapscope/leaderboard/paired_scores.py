r"""Scores of a measure that are sums over pairs of networks.

Kendall's tau, granulated tau and conditional mutual information are computed for many resamples and permutations at
once: a resample weighs the pairs, a permutation is another column of signs, and all sums are matrix products.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy
from jaxtyping import Float, Int

from gapscope.gap.columns import as_texts
from gapscope.statistics.correlations import ROUNDING
from gapscope.statistics.intervals import configuration_ids, members

if TYPE_CHECKING:
    import pandas
    from scipy.sparse import csr_array  # pyright: ignore[reportMissingTypeStubs]

Array = numpy.ndarray
PAIRED = ("kendall", "granulated", "mutual_information")
# looking up n log n in a table is four times as fast as computing it
MAX_LOOKUPS = 1_000_000


def _ratio(
    numerator: Float[Array, "*g d"], first: Float[Array, "*g d"], second: Float[Array, "*g d"]
) -> Array:
    # without untied pairs the numerator is 0 as well, and the ratio NaN
    with numpy.errstate(invalid="ignore"):
        return numerator / numpy.sqrt(first * second)


@functools.cache
def _small_nlogn() -> Float[Array, " m"]:
    numbers = numpy.arange(MAX_LOOKUPS, dtype=float)
    return numbers * numpy.log2(numpy.maximum(numbers, 1.0))


def _nlogn(counts: Int[Array, "*shape"]) -> Float[Array, "*shape"]:
    if counts.max(initial=0) < MAX_LOOKUPS:
        return _small_nlogn()[counts]
    return counts * numpy.log2(numpy.maximum(counts, 1))


def _finite_mean(values: Float[Array, "g d"]) -> Float[Array, " d"]:
    with numpy.errstate(invalid="ignore"):  # NaN without a finite value
        return numpy.nansum(values, 0) / numpy.isfinite(values).sum(0)


def _ranks(values: Float[Array, "n d"]) -> Array:
    """Return dense ranks of each column (the values themselves if some are NaN).

    The comparison of all pairs is several times as fast with two bytes per number as with eight.
    """
    if numpy.isnan(values).any():
        return values
    ranks = [numpy.unique(column, return_inverse=True)[1] for column in values.T]
    dtype = numpy.int16
    if len(values) >= 2**15:
        dtype = numpy.int32
    return numpy.stack(ranks, axis=1).astype(dtype)


def _product(matrix: csr_array, values: Float[Array, "p d"]) -> Float[Array, "c d"]:
    return matrix @ values  # pyright: ignore[reportUnknownVariableType]


@dataclass(frozen=True)
class _Counts:
    """Weights of pairs by kind (both configurations and the gap's sign) and resample.

    Attributes:
        above: Weights of the pairs in which the measure of the first network is larger.
        below: Weights of those in which it is smaller.
        every: Weights of all pairs; one column if it is equal in all resamples.
        sign: Sign of the difference in the gap.
    """

    above: Float[Array, "k d"]
    below: Float[Array, "k d"]
    every: Float[Array, "k e"]
    sign: Float[Array, "k 1"]

    def for_tau(self) -> tuple[Array, Array, Array]:
        """Return the summands of tau-b: agreement, and pairs untied in the measure and in the gap."""
        # tau-b = sum sign(d measure) sign(d gap) / sqrt(#untied in the measure * #untied in the gap)
        agreement = self.sign * (self.above - self.below)
        untied_measure = self.above + self.below
        untied_gap = self.every * numpy.abs(self.sign)
        return agreement, untied_measure, numpy.broadcast_to(untied_gap, agreement.shape)


@dataclass(frozen=True)
class _Groups:
    """Groups of pairs that agree in all hyperparameters except one.

    Attributes:
        sums: Map from kinds of pairs to sums over each group.
        differ: 1 for kinds in which that hyperparameter differs, else 0.
    """

    sums: csr_array
    differ: Float[Array, "k 1"]


@dataclass(frozen=True)
class _Cells:
    """Sums of kinds of pairs over cells: what the two networks have in some hyperparameters.

    The cells (a, b) and (b, a) have mirrored counts. So each pair is sorted to a <= b, which reverses the signs of
    gap and measure of the pairs in `reversed_sums`.

    Attributes:
        sums: Map from kinds of pairs to [2 * cell + (gap is larger)].
        reversed_sums: The same for pairs that are reversed.
        diagonal: True for cells (a, a).
    """

    sums: csr_array
    reversed_sums: csr_array
    diagonal: Array

    def counts(self, pairs: _Counts) -> Array:
        """Count pairs by cell, gap sign, measure sign (above, below, equal) and resample."""
        over = _product(self.sums, pairs.above) + _product(self.reversed_sums, pairs.below)
        under = _product(self.sums, pairs.below) + _product(self.reversed_sums, pairs.above)
        every = _product(self.sums, pairs.every) + _product(self.reversed_sums, pairs.every)
        equal = numpy.broadcast_to(every, over.shape) - over - under
        counts = numpy.stack([over, under, equal], axis=1)
        # [cells * gap sign, measure sign, resamples] -> [cells, 2, 3, resamples]; products of counts are integers
        counts = counts.reshape(-1, 2, 3, counts.shape[-1]).astype(numpy.int64)
        # ordered pairs: (a, b) stands for (b, a), too; (a, a) contains each pair and its mirror image
        diagonal = counts[self.diagonal]
        counts *= 2
        counts[self.diagonal] = diagonal + diagonal[:, ::-1][:, :, [1, 0, 2]]
        return counts


def _configurations(table: pandas.DataFrame, names: Sequence[str]) -> Int[Array, " n"]:
    """Number the configurations of these hyperparameters; without any, all networks have the same."""
    if names:
        return configuration_ids(table, names)
    return numpy.zeros(len(table), dtype=int)


def _indicator(
    rows: Int[Array, " p"], columns: Int[Array, " p"], shape: tuple[int, int]
) -> csr_array:
    from scipy.sparse import csr_array  # pyright: ignore[reportMissingTypeStubs]

    return csr_array((numpy.ones(len(rows), dtype=numpy.float32), (rows, columns)), shape=shape)


class PairedScores:
    r"""Scores over pairs of the networks of one table.

    All scores depend on pairs only through sums over kinds: pairs of the same two training configurations with the same
    sign of the gap. With several seeds per configuration, kinds are far fewer than pairs.

    "granulated" is the mean over hyperparameters of the mean tau-b of the groups in which only that hyperparameter
    varies; groups in which measure or gap is constant have no tau and are dropped. "mutual_information" is
    $\min_S I(V_\mu; V_g \mid U_S) / H(V_g \mid U_S)$ over pairs with different gaps, with $V_\mu$, $V_g$ the signs of
    the differences, ties of the measure as a third value, and $U_S$ the values of both networks in up to two
    hyperparameters S: 0 if the measure adds nothing to S, 1 if it decides every pair.

    Jiang et al., "Fantastic generalization measures and where to find them", 2020, eq. 5, 6 and 8 to 11.
    """

    def __init__(
        self, table: pandas.DataFrame, target: str, hyperparameters: Sequence[str]
    ) -> None:
        gap = table[target].to_numpy(dtype=float)
        cluster = _configurations(table, hyperparameters)
        count = int(cluster.max()) + 1
        one, other = numpy.triu_indices(len(table), 1)
        is_sorted = cluster[one] <= cluster[other]
        first = numpy.where(is_sorted, one, other)
        second = numpy.where(is_sorted, other, one)
        sign = numpy.sign(gap[first] - gap[second]).astype(int)
        # kind = (first configuration, second configuration, sign + 1) in mixed radix (count, count, 3)
        keys = (cluster[first] * count + cluster[second]) * 3 + sign + 1
        kinds, kind = numpy.unique(keys, return_inverse=True)
        order = numpy.argsort(kind, kind="stable")
        self.first = first[order]
        self.second = second[order]
        # None if every kind has one pair, so that there is nothing to sum
        self._sums = None
        if len(kinds) < len(kind):
            pairs = numpy.arange(len(kind))
            self._sums = _indicator(kind[order], pairs, (len(kinds), len(kind)))
        self._resampled: tuple[Array, Array, Array] | None = None
        self._sign = (kinds % 3 - 1).astype(numpy.float32)[:, None]
        # training configurations of the first and second network of each kind, and the settings of each configuration
        self._one, self._other = numpy.divmod(kinds // 3, count)
        settings = table.iloc[numpy.unique(cluster, return_index=True)[1]]
        self._groups = [
            self._make_groups(settings, name, hyperparameters) for name in hyperparameters
        ]
        subsets = [subset for size in (0, 1, 2) for subset in combinations(hyperparameters, size)]
        self._cells = [self._make_cells(_configurations(settings, subset)) for subset in subsets]

    def _make_groups(
        self, settings: pandas.DataFrame, name: str, hyperparameters: Sequence[str]
    ) -> _Groups:
        shared = _configurations(settings, [other for other in hyperparameters if other != name])
        inside = numpy.flatnonzero(shared[self._one] == shared[self._other])
        group = numpy.unique(shared[self._one[inside]], return_inverse=True)[1]
        values = as_texts(settings[name])
        differ = (values[self._one] != values[self._other]).astype(numpy.float32)[:, None]
        count = int(group.max(initial=-1)) + 1
        return _Groups(_indicator(group, inside, (count, len(self._one))), differ)

    def _make_cells(self, number: Int[Array, " c"]) -> _Cells:
        """Return the cells of some hyperparameters, whose values have one number in each configuration."""
        size = int(number.max()) + 1
        a = number[self._one]
        b = number[self._other]
        cells, cell = numpy.unique(
            numpy.minimum(a, b) * size + numpy.maximum(a, b), return_inverse=True
        )
        is_reversed = a > b
        sign = self._sign[:, 0]
        row = 2 * cell + ((sign > 0) != is_reversed)
        shape = (2 * len(cells), len(cell))

        def sums_over(mask: Array) -> csr_array:
            kinds = numpy.flatnonzero((sign != 0) & mask)
            return _indicator(row[kinds], kinds, shape)

        is_diagonal = cells // size == cells % size
        return _Cells(sums_over(~is_reversed), sums_over(is_reversed), is_diagonal)

    def of(
        self,
        values: Float[Array, "n d"],
        weights: Float[Array, "b n"] | None = None,
        *,
        only: Sequence[str] = PAIRED,
    ) -> dict[str, Array]:
        """Return scores by name, of each column, or of one column under each row of weights.

        `weights` are the counts of each network in each resample. Undefined scores are NaN.
        """
        counts = self._counts(values, weights)
        score: dict[str, Callable[[_Counts], Array]] = {
            "kendall": _kendall,
            "granulated": self._granulated,
            "mutual_information": self._information,
        }
        return {name: score[name](counts) for name in only}

    def _counts(self, values: Float[Array, "n d"], weights: Float[Array, "b n"] | None) -> _Counts:
        ranks = _ranks(values)
        first = ranks[self.first]
        second = ranks[self.second]
        above = (first > second).astype(numpy.float32)
        below = (first < second).astype(numpy.float32)
        paired, every = self._weighted(weights)
        if weights is not None:
            above = above * paired
            below = below * paired
        return _Counts(self._summed(above), self._summed(below), every, self._sign)

    def _weighted(self, weights: Float[Array, "b n"] | None) -> tuple[Array, Array]:
        """Return weights of all pairs and their sums by kind, cached for the next measure."""
        if weights is None:
            paired = numpy.ones((len(self.first), 1), dtype=numpy.float32)
            return paired, self._summed(paired)
        if self._resampled is None or self._resampled[0] is not weights:
            columns = weights.T.astype(numpy.float32)
            paired = columns[self.first] * columns[self.second]
            self._resampled = weights, paired, self._summed(paired)
        return self._resampled[1:]

    def _summed(self, pairs: Float[Array, "p d"]) -> Float[Array, "k d"]:
        if self._sums is None:
            return pairs
        return _product(self._sums, pairs)

    def _group_taus(self, counts: _Counts) -> list[tuple[Array, Array]]:
        """Return the tau of each group per hyperparameter, and if the hyperparameter varies."""
        parts = counts.for_tau()
        result: list[tuple[Array, Array]] = []
        for groups in self._groups:
            taus = _ratio(*(_product(groups.sums, part) for part in parts))
            is_varied = _product(groups.sums, counts.every * groups.differ) > 0
            result.append((taus, is_varied))
        return result

    def _granulated(self, counts: _Counts) -> Float[Array, " d"]:
        by_name: list[Float[Array, " d"]] = [
            _finite_mean(numpy.where(varied, taus, numpy.nan))
            for taus, varied in self._group_taus(counts)
        ]
        if by_name:
            return _finite_mean(numpy.stack(by_name))
        return numpy.full(len(counts.above.T), numpy.nan)

    def count_groups(self, values: Float[Array, " n"]) -> tuple[int, int]:
        """Return the number of groups with a tau, and of those that are dropped."""
        taus = self._group_taus(self._counts(values[:, None], None))
        is_finite = [numpy.isfinite(tau[varied]) for tau, varied in taus]
        n_groups = sum(int(each.sum()) for each in is_finite)
        n_dropped = sum(int((~each).sum()) for each in is_finite)
        return n_groups, n_dropped

    def _information(self, counts: _Counts) -> Float[Array, " d"]:
        least = numpy.full(counts.above.shape[1], numpy.inf)
        for cells in self._cells:
            # N H(X | cell) = sum over cells of n log n minus sum over (cell, x) of n log n, with N pairs in all
            table = cells.counts(counts)
            of_cells = _nlogn(table.sum((1, 2))).sum(0)
            of_gap = _nlogn(table.sum(2)).sum((0, 1))
            of_measure = _nlogn(table.sum(1)).sum((0, 1))
            of_both = _nlogn(table).sum((0, 1, 2))
            # N H(gap | cell), and N I(measure; gap | cell) = N [H(gap | .) + H(measure | .) - H(gap, measure | .)]
            unknown = of_cells - of_gap
            shared = of_cells - of_gap - of_measure + of_both
            is_defined = unknown > ROUNDING * numpy.maximum(of_cells, 1.0)
            fraction = shared / numpy.where(is_defined, unknown, 1.0)
            least = numpy.minimum(least, numpy.where(is_defined, fraction, numpy.inf))
        return numpy.where(numpy.isfinite(least), numpy.clip(least, 0.0, 1.0), numpy.nan)


def _kendall(counts: _Counts) -> Float[Array, " d"]:
    return _ratio(*(part.sum(0, dtype=float) for part in counts.for_tau()))


def _entropy(counts: Float[Array, "cells k"], slack: float = 0.0) -> Float[Array, " cells"]:
    """Return the entropy in bits of each row of counts."""
    p = counts / counts.sum(1, keepdims=True)
    return -(p * numpy.log2(numpy.where(p + slack > 0, p + slack, 1.0))).sum(1)


def competition_score(
    table: pandas.DataFrame, measure: str, target: str, hyperparameters: Sequence[str]
) -> float:
    """Return the score of the 2020 competition (NaN below two hyperparameters).

    It conditions on exactly two hyperparameters, gives every cell the same weight, and counts ties and pairs of a
    network with itself as "not larger", so it changes if the measure is negated. The competition reports 100 times it.

    Jiang et al., "NeurIPS 2020 competition: Predicting generalization in deep learning", 2020.
    """
    values = table[measure].to_numpy(dtype=float)
    gaps = table[target].to_numpy(dtype=float)
    first, second = (part.ravel() for part in numpy.indices((len(gaps), len(gaps))))
    has_larger_value = (values[first] > values[second]).astype(int)
    has_larger_gap = (gaps[first] > gaps[second]).astype(int)
    scores = [numpy.inf]
    for names in combinations(hyperparameters, 2):
        # a cell per pair of values of the two hyperparameters: [cell, gap larger, measure larger]
        number = configuration_ids(table, names)
        cell = numpy.unique(number[first] * len(number) + number[second], return_inverse=True)[1]
        counts = numpy.zeros((int(cell.max()) + 1, 2, 2))
        numpy.add.at(counts, (cell, has_larger_gap, has_larger_value), 1.0)
        # I(gap; measure) = H(gap) + H(measure) - H(gap, measure) per cell
        of_gap = counts.sum(2)
        of_measure = counts.sum(1)
        information = _entropy(of_gap) + _entropy(of_measure) - _entropy(counts.reshape(-1, 4))
        # the competition adds 1e-12 inside the logarithm of this entropy only
        scores.append(float(information.mean() / _entropy(of_gap, slack=1e-12).mean()))
    if numpy.isfinite(min(scores)):
        return max(min(scores), 0.0)
    return numpy.nan


def sign_errors(
    table: pandas.DataFrame,
    measure: str,
    target: str,
    hyperparameters: Sequence[str],
    n_test: int | None,
) -> Float[Array, "e 3"]:
    r"""Return the sign error per pair of configurations that differ in one hyperparameter.

    $$e = \frac{\sum w\,\tfrac12\big(1 - \operatorname{sign}(\Delta\mu)\operatorname{sign}(\Delta g)\big)}{\sum w},
    \qquad w = \Big(\max\big(0,\, 1 - 2 e^{-2 n (|\Delta g|/2)^2}\big)^2 - \tfrac12\Big)_+$$

    summed over all pairs of networks (seeds) of the two configurations. The weight is a Hoeffding bound: it excludes
    pairs whose gaps may differ only because the test set of n samples is finite (`n_test` None: equal weights).
    Environments without weight are dropped. Rows are (first configuration, second configuration, error).

    Dziugaite et al., "In search of robust measures of generalization", 2020, section 4 and appendix B.
    """
    values = table[measure].to_numpy(dtype=float)
    gaps = table[target].to_numpy(dtype=float)
    settings = numpy.array([as_texts(table[name]) for name in hyperparameters]).T
    errors: list[tuple[float, float, float]] = []
    configurations = []
    if hyperparameters:
        configurations = members(configuration_ids(table, hyperparameters))
    for (a, ones), (b, others) in combinations(enumerate(configurations), 2):
        if (settings[ones[0]] != settings[others[0]]).sum() != 1:
            continue
        gap_differences = gaps[ones][:, None] - gaps[others]
        differences = values[ones][:, None] - values[others]
        weights = numpy.ones_like(gap_differences)
        if n_test is not None:
            exponent = -2 * n_test * (numpy.abs(gap_differences) / 2) ** 2
            confidence = numpy.maximum(0.0, 1 - 2 * numpy.exp(exponent)) ** 2
            weights = numpy.maximum(0.0, confidence - 0.5)
        if weights.any():
            sign_error = (1 - numpy.sign(differences) * numpy.sign(gap_differences)) / 2
            errors.append((a, b, float((weights * sign_error).sum() / weights.sum())))
    return numpy.array(errors).reshape(-1, 3)
