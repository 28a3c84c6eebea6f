r"""Partial correlation of a measure and the gap given the hyperparameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy
from jaxtyping import Float, Int

from gapscope.leaderboard.hyperparameter_smoother import HyperparameterSmoother, normal_scores
from gapscope.prediction.columns import complete_rows
from gapscope.statistics.intervals import cluster_weights, percentile_interval

if TYPE_CHECKING:
    import pandas

Array = numpy.ndarray
NOTHING_LEFT = 1e-6


@dataclass(frozen=True)
class PartialAssociation:
    """Correlation of residuals.

    Attributes:
        value: The correlation, -1 to 1; NaN where the hyperparameters leave nothing of the measure.
        low: Lower end of its 95 % interval over resampled training configurations.
        high: Upper end.
        explained: Fraction of the variance of the measure that the hyperparameters explain on held-out training
            configurations.
        permuted: The correlation under each permutation, for p-values.
    """

    value: float
    low: float
    high: float
    explained: float
    permuted: Float[Array, " d"]


def _correlation(x: Float[Array, "n d"], y: Float[Array, "n 1"]) -> Float[Array, " d"]:
    x, y = x - x.mean(0), y - y.mean(0)
    spread = numpy.sqrt((x**2).sum(0) * (y**2).sum(0))
    return numpy.where(spread > 0, (x * y).sum(0) / numpy.where(spread > 0, spread, 1.0), numpy.nan)


def _resampled(x: Float[Array, " n"], y: Float[Array, " n"], weights: Float[Array, "b n"]) -> Float[Array, " b"]:
    total = weights.sum(1)
    x_mean, y_mean = weights @ x / total, weights @ y / total
    covariance = weights @ (x * y) / total - x_mean * y_mean
    variances = (weights @ x**2 / total - x_mean**2) * (weights @ y**2 / total - y_mean**2)
    return covariance / numpy.sqrt(numpy.maximum(variances, 1e-300))


class PartialAssociations:
    r"""Partial associations of the measures of one table.

    Measure and gap are turned into normal scores of their ranks; `HyperparameterSmoother` fits each by the
    hyperparameters, without the training configuration that is predicted (cross-fitting), and the residuals are
    correlated:

    $$r = \operatorname{corr}\big(\mu - \hat\mu_{-c}(\theta),\; g - \hat g_{-c}(\theta)\big)$$

    Under a permutation the residuals of the measure are exchanged between whole training configurations and smoothed
    again (Freedman and Lane 1983), so that the parameters spent on the hyperparameters count. Residuals on both sides
    make the error of either fit a product of two small ones (Chernozhukov et al. 2018); it is not zero: a measure that
    is the gap's own smooth function of the hyperparameters plus a little noise is the hardest case ("shadow" in
    `results/protocols`).

    `orders` are permutations of the rows, the same for all measures.

    Freedman and Lane, "A nonstochastic interpretation of reported significance levels", 1983; Chernozhukov et al.,
    "Double/debiased machine learning for treatment and structural parameters", 2018.
    """

    def __init__(
        self,
        table: pandas.DataFrame,
        target: str,
        hyperparameters: Sequence[str],
        clusters: Int[Array, " n"],
        orders: Sequence[Int[Array, " n"]],
        *,
        n_bootstrap: int = 2000,
        seed: int = 0,
    ) -> None:
        self._smoother = HyperparameterSmoother(table, hyperparameters, clusters)
        self._orders, self._weights = orders, cluster_weights(clusters, n_bootstrap, seed)
        gap = normal_scores(table[target].to_numpy(dtype=float))
        self._gap = self._smoother.residuals(gap).held_out @ gap

    def of(self, values: Float[Array, " n"]) -> PartialAssociation:
        """Return the association of one measure (one finite number per network)."""
        scores = normal_scores(values)
        maps = self._smoother.residuals(scores)
        inside, held_out = maps.inside @ scores, maps.held_out @ scores
        explained = 1 - float((held_out**2).sum() / max(float((scores**2).sum()), 1e-300))
        if inside.std() < NOTHING_LEFT:
            permuted = numpy.full(len(self._orders), numpy.nan)
            return PartialAssociation(numpy.nan, numpy.nan, numpy.nan, explained, permuted)
        permuted = maps.held_out @ numpy.stack([inside[order] for order in self._orders], axis=1)
        return PartialAssociation(
            float(_correlation(held_out[:, None], self._gap[:, None])[0]),
            *percentile_interval(_resampled(held_out, self._gap, self._weights), 0.95),
            explained,
            _correlation(permuted, self._gap[:, None]),
        )


def partial_association(
    table: pandas.DataFrame, measure: str, target: str = "gap", *, hyperparameters: Sequence[str],
    n_permutations: int = 1000, seed: int = 0,
) -> tuple[PartialAssociation, float]:  # fmt: skip
    """Return the correlation of measure and gap given hyperparameters, with its permutation p.

    The association is that of `PartialAssociations`, the p-value two-sided (1 if the hyperparameters explain the
    measure completely).

    Args:
        n_permutations: Permutations of the training configurations.

    >>> import pandas
    >>> rng = numpy.random.default_rng(0)
    >>> table = pandas.DataFrame({"width": numpy.arange(60) % 30, "noise": rng.normal(size=60)})
    >>> table = table.assign(gap=table["width"] / 30 + table["noise"], norm=table["noise"] - table["width"] / 30)
    >>> result, p = partial_association(table, "norm", hyperparameters=["width"], n_permutations=200)
    >>> bool(result.value > 0.9 and p < 0.01)
    True
    """
    from gapscope.statistics.intervals import configuration_ids, permutations

    table = complete_rows(table, [measure], target=target)
    clusters = configuration_ids(table, hyperparameters)
    orders = list(permutations(clusters, n_permutations, seed))
    associations = PartialAssociations(table, target, hyperparameters, clusters, orders, seed=seed)
    result = associations.of(table[measure].to_numpy(dtype=float))
    beyond = int((numpy.abs(result.permuted) >= abs(result.value) - 1e-12).sum())
    return result, 1.0 if numpy.isnan(result.value) else (1 + beyond) / (1 + n_permutations)
