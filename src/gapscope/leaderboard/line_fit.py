"""Cross-validated R2 and mean absolute error of the line from a measure to the gap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy
from jaxtyping import Float, Int

from gapscope.leaderboard.leaderboard_result import Score
from gapscope.statistics.intervals import cluster_weights, members, percentile_interval

Array = numpy.ndarray


@dataclass(frozen=True)
class HeldOutLine:
    """Error of a line that predicts the gap of networks of other training configurations.

    Attributes:
        r_squared: 1 minus the squared errors over those of the mean gap of the other training configurations; at most
            1, below 0 if the line is worse than that mean.
        mae: Mean absolute error, in units of the gap.
        permuted: R2 under each permutation, for p-values.
    """

    r_squared: Score
    mae: Score
    permuted: Float[Array, " d"]


def _left_out(columns: Float[Array, "n p"], clusters: Int[Array, " n"]) -> Float[Array, "n n"]:
    """Return the map of targets to the errors of the fits without each row's own cluster."""
    inside = numpy.eye(len(columns)) - columns @ numpy.linalg.pinv(columns)
    errors = inside.copy()
    for rows in members(clusters):
        errors[rows] = numpy.linalg.pinv(inside[numpy.ix_(rows, rows)]) @ inside[rows]
    return errors


def _columns(values: Float[Array, " n"]) -> Float[Array, "n 2"]:
    spread = float(values.std()) or 1.0
    return numpy.stack([numpy.ones(len(values)), (values - values.mean()) / spread], axis=1)


def held_out_errors(
    values: Float[Array, " n"], gaps: Float[Array, " n"], clusters: Int[Array, " n"]
) -> Float[Array, " n"]:
    """Return each gap minus its prediction by the line of the other training configurations.

    >>> errors = held_out_errors(numpy.arange(6.0), 2 * numpy.arange(6.0), numpy.arange(6))
    >>> bool(numpy.abs(errors).max() < 1e-9)
    True
    """
    return _left_out(_columns(values), clusters) @ gaps


def cross_validated_line(
    values: Float[Array, " n"],
    gaps: Float[Array, " n"],
    clusters: Int[Array, " n"],
    orders: Float[Array, "d n"],
    *,
    n_bootstrap: int = 2000,
    seed: int = 0,
) -> HeldOutLine:
    r"""Predict each gap by the line of the other training configurations.

    $$R^2 = 1 - \frac{\sum_i (g_i - \hat a_{-c} - \hat b_{-c}\mu_i)^2}{\sum_i (g_i - \bar g_{-c})^2}$$

    with c the training configuration of network i: the mean gap, too, is that of the others, so that R2 of an
    uninformative measure is slightly below 0. Exact, by the closed form of least squares with held-out rows. `orders`
    are permutations of the rows.

    >>> numbers, none = numpy.arange(6), numpy.empty((0, 6), dtype=int)
    >>> line = cross_validated_line(numbers.astype(float), 2.0 * numbers, numbers, none)
    >>> round(line.r_squared.value, 6), round(line.mae.value, 6)
    (1.0, 0.0)
    """
    line = _left_out(_columns(values), clusters)
    mean = _left_out(numpy.ones((len(values), 1)), clusters)
    errors, baseline = line @ gaps, mean @ gaps
    weights = cluster_weights(clusters, n_bootstrap, seed)
    permuted = gaps[numpy.asarray(orders, dtype=int)].T if len(orders) else numpy.empty((len(gaps), 0))

    def explained(of_line: Array, of_mean: Array) -> Array:
        return 1 - of_line / numpy.where(of_mean > 0, of_mean, numpy.nan)

    return HeldOutLine(
        Score.of(
            float(explained((errors**2).sum(), (baseline**2).sum())),
            percentile_interval(explained(weights @ errors**2, weights @ baseline**2), 0.95),
        ),
        Score.of(
            float(numpy.abs(errors).mean()),
            percentile_interval(weights @ numpy.abs(errors) / weights.sum(1), 0.95),
        ),
        explained(((line @ permuted) ** 2).sum(0), ((mean @ permuted) ** 2).sum(0)),
    )
