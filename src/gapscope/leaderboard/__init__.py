"""Comparison of networks, and evaluation of measures on tables of networks."""

from gapscope.leaderboard.conditional_mutual_information import (
    conditional_mutual_information as conditional_mutual_information,
)
from gapscope.leaderboard.granulated_kendall import granulated_kendall as granulated_kendall
from gapscope.leaderboard.partial_association import partial_association as partial_association
from gapscope.leaderboard.ranking import rank_measures as rank_measures
from gapscope.leaderboard.robust_sign_error import robust_sign_error as robust_sign_error
from gapscope.prediction.correlations import correlations as correlations
