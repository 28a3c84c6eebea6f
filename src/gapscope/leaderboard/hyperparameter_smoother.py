r"""Leave-one-configuration-out residuals of a column given the hyperparameters.

The smoother is ridge regression in the space of all interactions of the hyperparameters: with $k_j$ the centred
equality kernel of hyperparameter j (a Gaussian of the ranks where it has more than `MOST_LEVELS` values),

$$K = \prod_j (1 + \theta k_j), \qquad S = K (K + \lambda n I)^{-1}$$

holds main effects with weight $\theta$, interactions of two with $\theta^2$, and so on. $\theta$ and $\lambda$ are
those of the least error on held-out training configurations. How flexible this is decides every verdict that rests on
it. In 60 simulated pools of 150 networks, at 5 % for a single measure, the gap's own function of the hyperparameters
with some noise passed for evidence in 35 % with main effects alone, in 8 % with all pairs by least squares, in 13 %
with this smoother; a planted partial correlation of .3 was found in 98, 87 and 98 %. What the corrected verdicts are
worth is counted in `results/protocols/never_fooled.json`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy
from jaxtyping import Float, Int

from gapscope.prediction.columns import as_texts
from gapscope.statistics.intervals import members

if TYPE_CHECKING:
    import pandas

Array = numpy.ndarray
MOST_LEVELS = 8
INTERACTIONS = (0.05, 0.15, 0.4, 1.0)
RIDGES = tuple(value / 96 for value in (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0))


def normal_scores(values: Float[Array, " n"]) -> Float[Array, " n"]:
    """Return normal quantiles of the mid-ranks, invariant under increasing functions.

    >>> normal_scores(numpy.array([1.0, 10.0, 100.0])).round(3).tolist()
    [-0.967, 0.0, 0.967]
    """
    from scipy.special import ndtri  # pyright: ignore[reportMissingTypeStubs]
    from scipy.stats import rankdata  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]

    return ndtri((rankdata(values) - 0.5) / len(values))


def _kernel(column: Any) -> Float[Array, "n n"]:
    """Return the centred kernel of one hyperparameter with unit diagonal (zero if constant)."""
    values, codes = numpy.unique(as_texts(column), return_inverse=True)
    levels = len(values)
    if levels == 1:
        return numpy.zeros((len(codes), len(codes)))
    if levels > MOST_LEVELS and column.dtype.kind in "if":
        ranks = column.rank().to_numpy(dtype=float) / len(column)
        kernel = numpy.exp(-0.5 * ((ranks[:, None] - ranks[None]) / 0.25) ** 2)
        kernel = kernel - kernel.mean(0) - kernel.mean(1)[:, None] + kernel.mean()
        return kernel / kernel.diagonal().mean()
    return ((codes[:, None] == codes[None]) * levels - 1.0) / (levels - 1)


@dataclass(frozen=True)
class Residuals:
    """Linear maps of a column to its residuals given the hyperparameters.

    Attributes:
        inside: Residuals of the fit to all rows.
        held_out: Residuals of the fits without each row's own training configuration.
    """

    inside: Float[Array, "n n"]
    held_out: Float[Array, "n n"]


class HyperparameterSmoother:
    """Fit columns by hyperparameters, with the flexibility of best leave-one-out error.

    Args:
        hyperparameters: Columns of the hyperparameters; none fits the mean.
    """

    def __init__(self, table: pandas.DataFrame, hyperparameters: Sequence[str], clusters: Int[Array, " n"]) -> None:
        self.n, self._members = len(table), members(clusters)
        self._kernels = [_kernel(table[name]) for name in hyperparameters]

    @cached_property
    def _candidates(self) -> list[Residuals]:
        candidates: list[Residuals] = []
        for weight in INTERACTIONS if self._kernels else (0.0,):
            kernel = numpy.ones((self.n, self.n))
            for factor in self._kernels:
                kernel = kernel * (1 + weight * factor)
            values, vectors = numpy.linalg.eigh(kernel / kernel.diagonal().mean())
            for ridge in RIDGES if self._kernels else (1e-9,):
                shrinkage = numpy.maximum(values, 0.0) / (numpy.maximum(values, 0.0) + ridge * self.n)
                candidates.append(self._residuals(numpy.eye(self.n) - (vectors * shrinkage) @ vectors.T))
        return candidates

    def _residuals(self, inside: Float[Array, "n n"]) -> Residuals:
        # y - fit without the rows c of a configuration is (I - S)_cc^-1 ((I - S) y)_c, as for any ridge regression
        held_out = inside.copy()
        for rows in self._members:
            held_out[rows] = numpy.linalg.solve(inside[numpy.ix_(rows, rows)], inside[rows])
        return Residuals(inside, held_out)

    def residuals(self, values: Float[Array, " n"]) -> Residuals:
        """Return the maps whose held-out residuals of these values are smallest."""
        return min(self._candidates, key=lambda maps: float(((maps.held_out @ values) ** 2).sum()))
