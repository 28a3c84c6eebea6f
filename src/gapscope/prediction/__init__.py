"""Accuracy on new data: before training, after training, from partial training runs, and from other networks."""

from gapscope.prediction.columns import complete_rows as complete_rows
from gapscope.prediction.columns import hyperparameter_columns as hyperparameter_columns
from gapscope.prediction.columns import reading_columns as reading_columns
from gapscope.prediction.columns import reading_directions as reading_directions
from gapscope.prediction.cross_validation import baselines as baselines
from gapscope.prediction.cross_validation import cross_val_predict as cross_val_predict
from gapscope.prediction.cross_validation import cross_validate as cross_validate
from gapscope.prediction.defaults import suggest_estimator as suggest_estimator
from gapscope.prediction.gap_estimator import GapEstimator as GapEstimator
from gapscope.prediction.held_out import cross_validate_pool as cross_validate_pool
