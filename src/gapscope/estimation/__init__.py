"""Gap estimators, cross-validation and rank protocols over tables of readings (never torch)."""

from gapscope.estimation.columns import hyperparameter_columns as hyperparameter_columns
from gapscope.estimation.columns import reading_columns as reading_columns
from gapscope.estimation.columns import reading_directions as reading_directions
from gapscope.estimation.columns import usable_rows as usable_rows
from gapscope.estimation.correlations import correlations as correlations
from gapscope.estimation.cross_validation import baselines as baselines
from gapscope.estimation.cross_validation import cross_validate as cross_validate
from gapscope.estimation.cross_validation import held_out_predictions as held_out_predictions
from gapscope.estimation.gap_estimator import GapEstimator as GapEstimator
from gapscope.estimation.suggestion import suggested_estimator as suggested_estimator
