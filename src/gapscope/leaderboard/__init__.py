"""Comparison of networks, and evaluation of measures on tables of networks.

Common parameters:
    table: One row per network.
    measure: Column of the measure.
    target: Column of the generalization gap.
    hyperparameters: Columns of the hyperparameters that were varied.
    clusters: Number of the training configuration of each row; seeds of one configuration share it.
    values, gaps: Measure and gap of each network, finite.
    level: Nominal coverage of intervals.
    n_bootstrap: Number of bootstrap resamples.
    seed: Seed of permutations and resamples.
    axes: Matplotlib axes; None for a new figure.
    path: File to read or write.
"""

from gapscope.leaderboard.ranking import rank_measures as rank_measures
from gapscope.statistics.correlations import correlations as correlations
