"""Measure, watch, predict and improve how a neural network generalises, from its training data alone.

Public names are loaded when they are first used: importing gapscope alone loads nothing heavy.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gapscope.leaderboard.comparison_run import compare as compare
    from gapscope.leaderboard.comparison import Comparison as Comparison
    from gapscope.prediction.forecast import expected_accuracy as expected_accuracy
    from gapscope.measures.measurement import measure as measure
    from gapscope.prediction.network_ranking import rank_architectures as rank_architectures
    from gapscope.results.estimate import Estimate as Estimate
    from gapscope.results.readings import Reading as Reading
    from gapscope.results.readings import Readings as Readings
    from gapscope.results.records import Record as Record
    from gapscope.results.records import records_to_pandas as records_to_pandas
    from gapscope.base.samples import Samples as Samples
    from gapscope.base.specs import DataSpec as DataSpec
    from gapscope.base.specs import LossSpec as LossSpec
    from gapscope.base.specs import NetworkSpec as NetworkSpec
    from gapscope.base.specs import PenaltySpec as PenaltySpec
    from gapscope.base.specs import Spec as Spec
    from gapscope.base.specs import TrainingSpec as TrainingSpec
    from gapscope.batch_norm.advice.batch_norm import advise_batch_norm as advise_batch_norm
    from gapscope.data.sources import load as load
    from gapscope.prediction.gap_estimator import GapEstimator as GapEstimator
    from gapscope.leaderboard.ranking import leaderboard as leaderboard
    from gapscope.leaderboard.leaderboard_result import Leaderboard as Leaderboard
    from gapscope.labels.label_issues import label_noise as label_noise
    from gapscope.labels.label_issues import suspect_labels as suspect_labels
    from gapscope.measures.accuracy import accuracy as accuracy
    from gapscope.measures.bias_variance import bias_variance as bias_variance
    from gapscope.measures.distance_from_initialization import (
        distance_from_initialization as distance_from_initialization,
    )
    from gapscope.measures.empirical_ntk import empirical_ntk as empirical_ntk
    from gapscope.measures.gradient_neighbours import gradient_neighbours as gradient_neighbours
    from gapscope.measures.input_jacobian_norm import input_jacobian_norm as input_jacobian_norm
    from gapscope.measures.kernel_leave_one_out import kernel_leave_one_out as kernel_leave_one_out
    from gapscope.measures.loss import loss as loss
    from gapscope.measures.margin_signature import margin_signature as margin_signature
    from gapscope.measures.ntk_logdet import ntk_logdet as ntk_logdet
    from gapscope.measures.ntk_trace import ntk_trace as ntk_trace
    from gapscope.measures.output_sensitivity import output_sensitivity as output_sensitivity
    from gapscope.measures.output_variance import error_detection as error_detection
    from gapscope.measures.output_variance import output_variance as output_variance
    from gapscope.measures.parameter_count import parameter_count as parameter_count
    from gapscope.measures.parameter_norm import parameter_norm as parameter_norm
    from gapscope.measures.temperature_scaling import TemperatureScaled as TemperatureScaled
    from gapscope.measures.temperature_scaling import fit_temperature as fit_temperature
    from gapscope.measures.unit_sparsity import unit_sparsity as unit_sparsity
    from gapscope.networks.factory import build as build
    from gapscope.penalties.automatic_strength import AutomaticStrength as AutomaticStrength
    from gapscope.penalties.dropout import AutomaticDropout as AutomaticDropout
    from gapscope.penalties.gamma_decay import GammaDecayPenalty as GammaDecayPenalty
    from gapscope.penalties.gradient_similarity import GradientSimilarityPenalty as GradientSimilarityPenalty
    from gapscope.penalties.input_jacobian import InputJacobianPenalty as InputJacobianPenalty
    from gapscope.penalties.loss_gradient import LossGradientPenalty as LossGradientPenalty
    from gapscope.penalties.robust_losses import EarlyLearningRegularization as EarlyLearningRegularization
    from gapscope.penalties.robust_losses import GeneralizedCrossEntropy as GeneralizedCrossEntropy
    from gapscope.penalties.weight import WeightPenalty as WeightPenalty
    from gapscope.pools.grid import Grid as Grid
    from gapscope.pools.external import record as record
    from gapscope.pools.pool import Pool as Pool
    from gapscope.prediction.accuracy_after_training import estimate_accuracy as estimate_accuracy
    from gapscope.prediction.recalibration import fit_accuracy as fit_accuracy
    from gapscope.report.training import write_training_report as write_training_report
    from gapscope.report.write import write_report as write_report
    from gapscope.prediction.learning_curves import twin as twin
    from gapscope.training.alarms.canaries import Canaries as Canaries
    from gapscope.training.alarms.canaries import CanaryAlarm as CanaryAlarm
    from gapscope.training.loop import train as train
    from gapscope.training.monitor import Monitor as Monitor
    from gapscope.training.multi_training import train_together as train_together

_PUBLIC = {
    "advise_batch_norm": "batch_norm.advice.batch_norm",
    "expected_accuracy": "prediction.forecast",
    "estimate_accuracy": "prediction.accuracy_after_training",
    "fit_accuracy": "prediction.recalibration",
    "measure": "measures.measurement",
    "compare": "leaderboard.comparison_run",
    "Comparison": "leaderboard.comparison",
    "load": "data.sources",
    "GapEstimator": "prediction.gap_estimator",
    "leaderboard": "leaderboard.ranking",
    "Leaderboard": "leaderboard.leaderboard_result",
    "label_noise": "labels.label_issues",
    "suspect_labels": "labels.label_issues",
    "accuracy": "measures.accuracy",
    "bias_variance": "measures.bias_variance",
    "distance_from_initialization": "measures.distance_from_initialization",
    "empirical_ntk": "measures.empirical_ntk",
    "gradient_neighbours": "measures.gradient_neighbours",
    "input_jacobian_norm": "measures.input_jacobian_norm",
    "kernel_leave_one_out": "measures.kernel_leave_one_out",
    "loss": "measures.loss",
    "margin_signature": "measures.margin_signature",
    "ntk_logdet": "measures.ntk_logdet",
    "ntk_trace": "measures.ntk_trace",
    "output_sensitivity": "measures.output_sensitivity",
    "error_detection": "measures.output_variance",
    "output_variance": "measures.output_variance",
    "parameter_count": "measures.parameter_count",
    "parameter_norm": "measures.parameter_norm",
    "TemperatureScaled": "measures.temperature_scaling",
    "fit_temperature": "measures.temperature_scaling",
    "unit_sparsity": "measures.unit_sparsity",
    "Monitor": "training.monitor",
    "Canaries": "training.alarms.canaries",
    "CanaryAlarm": "training.alarms.canaries",
    "build": "networks.factory",
    "AutomaticStrength": "penalties.automatic_strength",
    "AutomaticDropout": "penalties.dropout",
    "GammaDecayPenalty": "penalties.gamma_decay",
    "GradientSimilarityPenalty": "penalties.gradient_similarity",
    "InputJacobianPenalty": "penalties.input_jacobian",
    "LossGradientPenalty": "penalties.loss_gradient",
    "EarlyLearningRegularization": "penalties.robust_losses",
    "GeneralizedCrossEntropy": "penalties.robust_losses",
    "WeightPenalty": "penalties.weight",
    "Grid": "pools.grid",
    "Pool": "pools.pool",
    "record": "pools.external",
    "rank_architectures": "prediction.network_ranking",
    "Estimate": "results.estimate",
    "Reading": "results.readings",
    "Readings": "results.readings",
    "Record": "results.records",
    "records_to_pandas": "results.records",
    "write_report": "report.write",
    "write_training_report": "report.training",
    "Samples": "base.samples",
    "DataSpec": "base.specs",
    "NetworkSpec": "base.specs",
    "LossSpec": "base.specs",
    "PenaltySpec": "base.specs",
    "Spec": "base.specs",
    "TrainingSpec": "base.specs",
    "train": "training.loop",
    "train_together": "training.multi_training",
    "twin": "prediction.learning_curves",
}
# name -> module; `normalization` and `registry` are the names that these rooms had before they moved
_SUBPACKAGES = {
    **{name: name for name in ("batch_norm", "data", "estimation", "integrations", "measures", "networks", "penalties",
                               "pools", "report", "theory", "training")},
    "normalization": "batch_norm",
    "registry": "measures.registry",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load a public name or a sub-package when it is first used.

    Args:
        name: The name.

    Returns:
        The object.

    Raises:
        AttributeError: There is no such public name; the nearest is named.
    """
    if name in _PUBLIC:
        value = getattr(importlib.import_module(f"gapscope.{_PUBLIC[name]}"), name)
    elif name in _SUBPACKAGES:
        value = importlib.import_module(f"gapscope.{_SUBPACKAGES[name]}")
    elif name == "__version__":
        from gapscope.base.version import version

        value = version()
    else:
        from gapscope.base.errors import nearest

        raise AttributeError(f"gapscope has no public name {name!r}.{nearest(name, [*_PUBLIC, *_SUBPACKAGES])}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted([*_PUBLIC, *_SUBPACKAGES, "__version__"])
