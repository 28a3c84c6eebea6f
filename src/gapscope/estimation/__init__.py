"""Gap estimators, cross-validation and rank protocols over tables of readings (never torch)."""

from gapscope.prediction.columns import hyperparameter_columns as hyperparameter_columns
from gapscope.prediction.columns import reading_columns as reading_columns
from gapscope.prediction.columns import reading_directions as reading_directions
from gapscope.prediction.columns import usable_rows as usable_rows
from gapscope.leaderboard.conditional_mutual_information import (
    conditional_mutual_information as conditional_mutual_information,
)
from gapscope.prediction.correlations import correlations as correlations
from gapscope.prediction.cross_validation import baselines as baselines
from gapscope.prediction.cross_validation import cross_validate as cross_validate
from gapscope.prediction.cross_validation import held_out_predictions as held_out_predictions
from gapscope.prediction.gap_estimator import GapEstimator as GapEstimator
from gapscope.leaderboard.granulated_kendall import granulated_kendall as granulated_kendall
from gapscope.prediction.held_out import estimated_from_others as estimated_from_others
from gapscope.leaderboard.ranking import leaderboard as leaderboard
from gapscope.leaderboard.partial_association import partial_association as partial_association
from gapscope.leaderboard.protocols import compare_protocols as compare_protocols
from gapscope.leaderboard.robust_sign_error import robust_sign_error as robust_sign_error
from gapscope.prediction.defaults import suggested_estimator as suggested_estimator
