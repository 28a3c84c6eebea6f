"""Gap estimators, cross-validation and rank protocols over tables of readings (never torch)."""

from gapscope.estimation.columns import hyperparameter_columns as hyperparameter_columns
from gapscope.estimation.columns import reading_columns as reading_columns
from gapscope.estimation.columns import reading_directions as reading_directions
from gapscope.estimation.columns import usable_rows as usable_rows
from gapscope.estimation.conditional_mutual_information import (
    conditional_mutual_information as conditional_mutual_information,
)
from gapscope.estimation.correlations import correlations as correlations
from gapscope.estimation.cross_validation import baselines as baselines
from gapscope.estimation.cross_validation import cross_validate as cross_validate
from gapscope.estimation.cross_validation import held_out_predictions as held_out_predictions
from gapscope.estimation.gap_estimator import GapEstimator as GapEstimator
from gapscope.estimation.granulated_kendall import granulated_kendall as granulated_kendall
from gapscope.estimation.held_out import estimated_from_others as estimated_from_others
from gapscope.estimation.leaderboard import leaderboard as leaderboard
from gapscope.estimation.partial_association import partial_association as partial_association
from gapscope.estimation.protocols import compare_protocols as compare_protocols
from gapscope.estimation.robust_sign_error import robust_sign_error as robust_sign_error
from gapscope.estimation.suggestion import suggested_estimator as suggested_estimator
