r"""Kendall's tau, granulated tau and symmetric mutual information of many resamples or permutations at once.

All three are sums over pairs of networks. A resample is a weight of each pair, a permutation another column of signs:
either way the sums of all draws are a few products of matrices. The single values are those of `kendall_tau`,
`granulated_kendall` and `conditional_mutual_information` (tested).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy
from jaxtyping import Float, Int

from gapscope.estimation.clusters import recipes
from gapscope.estimation.columns import as_texts

if TYPE_CHECKING:
    import pandas
    from scipy.sparse import csr_array  # pyright: ignore[reportMissingTypeStubs]

Array = numpy.ndarray
PAIRED = ("kendall", "granulated", "mutual_information")
NOTHING = 1e-6


def _ratio(numerator: Float[Array, "*g d"], first: Float[Array, "*g d"], second: Float[Array, "*g d"]) -> Array:
    with numpy.errstate(invalid="ignore", divide="ignore"):
        return numpy.where((first > 0) & (second > 0), numerator / numpy.sqrt(first * second), numpy.nan)


def _nlogn(counts: Array) -> Array:
    return counts * numpy.log2(numpy.where(counts > 0, counts, 1.0))


def _mean_of_known(values: Float[Array, "g d"]) -> Float[Array, " d"]:
    known = numpy.isfinite(values)
    total = numpy.where(known, values, 0.0).sum(0)
    return numpy.where(known.any(0), total / numpy.maximum(known.sum(0), 1), numpy.nan)


def _product(matrix: csr_array, values: Float[Array, "p d"]) -> Float[Array, "c d"]:
    return matrix @ values  # pyright: ignore[reportUnknownVariableType]


@dataclass(frozen=True)
class _Groups:
    """Pairs in which only one hyper-parameter (and the seed) may differ, sorted by what they share."""

    pairs: Int[Array, " p"]
    starts: Int[Array, " g"]
    differ: Float[Array, "p 1"]

    def sums(self, values: Float[Array, "p d"]) -> Float[Array, "g d"]:
        return numpy.add.reduceat(values, self.starts, axis=0)


@dataclass(frozen=True)
class _Cells:
    """Which cell, and which sign of the difference in the gap, each pair with different gaps belongs to."""

    kept: csr_array
    turned: csr_array
    diagonal: Array  # cells in which both networks share all settings: each pair counts in both directions there

    def counts(self, above: Float[Array, "p d"], below: Float[Array, "p d"], weights: Float[Array, "p e"]) -> Array:
        """Pairs by cell, sign of the gap, sign of the measure (above, below, equal) and draw."""
        over = _product(self.kept, above) + _product(self.turned, below)
        under = _product(self.kept, below) + _product(self.turned, above)
        same = _product(self.kept, weights) + _product(self.turned, weights)
        same = same if same.shape[1] == over.shape[1] else numpy.broadcast_to(same, over.shape)
        found = numpy.stack([over, under, same - over - under], axis=1)
        found = found.reshape(-1, 2, 3, found.shape[-1]).astype(float)
        mirrored = found[self.diagonal][:, ::-1][:, :, [1, 0, 2]]
        found *= 2.0
        found[self.diagonal] = found[self.diagonal] / 2 + mirrored
        return found


class PairedScores:
    """Sums over pairs of the networks of one table.

    Args:
        table: One row a network.
        target: Column of the gap.
        hyperparameters: Columns of the hyper-parameters that were varied.
    """

    def __init__(self, table: pandas.DataFrame, target: str, hyperparameters: Sequence[str]) -> None:
        gap = table[target].to_numpy(dtype=float)
        self.first, self.second = numpy.triu_indices(len(table), 1)
        self._gap = numpy.sign(gap[self.first] - gap[self.second])[:, None].astype(numpy.float32)
        codes = {name: numpy.unique(as_texts(table[name]), return_inverse=True)[1] for name in hyperparameters}
        self._groups = [
            self._grouped(recipes(table, [other for other in hyperparameters if other != name]), codes[name])
            if len(hyperparameters) > 1
            else self._grouped(numpy.zeros(len(table), dtype=int), codes[name])
            for name in hyperparameters
        ]
        subsets = [subset for size in (0, 1, 2) for subset in combinations(hyperparameters, size)]
        self._cells = [self._cell([codes[name] for name in subset], len(table)) for subset in subsets]

    def _grouped(self, shared: Int[Array, " n"], own: Int[Array, " n"]) -> _Groups:
        inside = numpy.flatnonzero(shared[self.first] == shared[self.second])
        inside = inside[numpy.argsort(shared[self.first[inside]], kind="stable")]
        starts = numpy.flatnonzero(numpy.diff(shared[self.first[inside]], prepend=-1))
        differ = own[self.first[inside]] != own[self.second[inside]]
        return _Groups(inside, starts, differ[:, None].astype(numpy.float32))

    def _cell(self, codes: Sequence[Int[Array, " n"]], n: int) -> _Cells:
        from scipy.sparse import csr_array  # pyright: ignore[reportMissingTypeStubs]

        number = numpy.zeros(n, dtype=int)
        for code in codes:
            number = number * (int(code.max()) + 1) + code
        a, b = number[self.first], number[self.second]
        turned = a > b
        keys = numpy.minimum(a, b) * (int(number.max()) + 1) + numpy.maximum(a, b)
        values, cell = numpy.unique(keys, return_inverse=True)
        larger = (self._gap[:, 0] > 0) != turned
        row, pairs = 2 * cell + larger, numpy.arange(len(cell))
        untied = self._gap[:, 0] != 0

        def indicator(chosen: Array) -> csr_array:
            ones = numpy.ones(int(chosen.sum()), dtype=numpy.float32)
            return csr_array((ones, (row[chosen], pairs[chosen])), shape=(2 * len(values), len(cell)))

        diagonal = values // (int(number.max()) + 1) == values % (int(number.max()) + 1)
        return _Cells(indicator(untied & ~turned), indicator(untied & turned), diagonal)

    def of(
        self, values: Float[Array, "n d"], weights: Float[Array, "b n"] | None = None, *, only: Sequence[str] = PAIRED
    ) -> dict[str, Array]:
        """Return the three scores of each column, or of one column under each row of weights.

        Args:
            values: The measure, a column a draw; one column where there are weights.
            weights: How often each network is in each resample.
            only: Names of the scores to take.

        Returns:
            Name of the score -> one number a draw; NaN where it is not defined.
        """
        signs = numpy.sign(values[self.first] - values[self.second]).astype(numpy.float32)
        paired = numpy.ones((len(signs), 1), dtype=numpy.float32)
        if weights is not None:
            paired = (weights[:, self.first] * weights[:, self.second]).T.astype(numpy.float32)
        above, below = paired * (signs > 0), paired * (signs < 0)
        agree, untied, known = self._gap * (above - below), above + below, paired * numpy.abs(self._gap)
        draws = agree.shape[1]
        known = numpy.broadcast_to(known, (len(known), draws))
        score = {
            "kendall": lambda: _ratio(*(part.sum(0, dtype=float) for part in (agree, untied, known))),
            "granulated": lambda: self._granulated(agree, untied, known, numpy.broadcast_to(paired, known.shape)),
            "mutual_information": lambda: self._information(above, below, paired, draws),
        }
        return {name: score[name]() for name in only}

    def _granulated(self, agree: Array, untied: Array, known: Array, paired: Array) -> Float[Array, " d"]:
        by_name: list[Float[Array, " d"]] = []
        for groups in self._groups:
            if not len(groups.pairs):
                continue
            taus = _ratio(*(groups.sums(part[groups.pairs]) for part in (agree, untied, known)))
            varied = groups.sums(paired[groups.pairs] * groups.differ) > 0
            by_name.append(_mean_of_known(numpy.where(varied, taus, numpy.nan)))
        if not by_name:
            return numpy.full(len(agree.T), numpy.nan)
        return _mean_of_known(numpy.stack(by_name))

    def _information(self, above: Array, below: Array, paired: Array, draws: int) -> Float[Array, " d"]:
        least = numpy.full(draws, numpy.inf)
        for cells in self._cells:
            counts = cells.counts(above, below, paired)
            rows, total = _nlogn(counts.sum(2)).sum((0, 1)), _nlogn(counts.sum((1, 2))).sum(0)
            joint, columns = _nlogn(counts).sum((0, 1, 2)), _nlogn(counts.sum(1)).sum((0, 1))
            unknown, shared = total - rows, total - rows - columns + joint
            defined = unknown > NOTHING * numpy.maximum(total, 1.0)
            share = shared / numpy.where(defined, unknown, 1.0)
            least = numpy.minimum(least, numpy.where(defined, share, numpy.inf))
        return numpy.where(numpy.isfinite(least), numpy.clip(least, 0.0, 1.0), numpy.nan)
