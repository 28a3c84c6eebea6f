"""Measure, monitor, predict and improve how a neural network generalizes.

Public names are loaded when they are first used: `import gapscope` alone loads nothing heavy.
"""

from typing import Any

import lazy_loader

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ = [*__all__, "__version__"]  # noqa: F822 (given by `__getattr__`)

# Names of version 0.3 that changed in 0.4: old -> where it is now. They warn, and go in 0.5.
_RENAMED = {
    "AutomaticDropout": "penalties.AutomaticDropout",
    "AutomaticStrength": "training.AutomaticStrength",
    "EarlyLearningRegularization": "penalties.EarlyLearningRegularization",
    "GammaDecayPenalty": "penalties.GammaDecayPenalty",
    "GeneralizedCrossEntropy": "penalties.GeneralizedCrossEntropy",
    "InputJacobianPenalty": "penalties.InputJacobianPenalty",
    "LossGradientPenalty": "penalties.LossGradientPenalty",
    "Spec": "RunSpec",
    "WeightPenalty": "penalties.L2Penalty",
    "build": "build_network",
    "expected_accuracy": "forecast_accuracy",
    "fit_accuracy": "fit_accuracy_estimator",
    "label_noise": "estimate_label_noise",
    "load": "load_dataset",
    "rank_architectures": "rank_networks",
    "record": "record_network",
    "records_to_pandas": "pools.records_to_pandas",
    "suspect_labels": "find_label_issues",
    "train_together": "train_many",
    "twin": "learning_curve",
    **{
        name: f"functional.{name}"
        for name in (
            "accuracy", "bias_variance", "distance_from_initialization", "empirical_ntk", "error_detection",
            "gradient_neighbours", "input_jacobian_norm", "kernel_leave_one_out", "loss", "margin_signature",
            "ntk_logdet", "ntk_trace", "output_sensitivity", "output_variance", "parameter_count", "parameter_norm",
            "unit_sparsity",
        )
    },
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load a public name on first use. An old name warns and returns the new object."""
    if name == "__version__":
        from gapscope.base.environment import version

        return version()
    if name in _RENAMED:
        import operator
        import sys
        import warnings

        new = _RENAMED[name]
        warnings.warn(f"gapscope.{name} is now gapscope.{new}; the old name goes in 0.5.", DeprecationWarning, 2)
        return operator.attrgetter(new)(sys.modules[__name__])
    if name in __all__:
        return _load(name)
    from gapscope.base.errors import did_you_mean

    raise AttributeError(f"gapscope has no public name {name!r}.{did_you_mean(name, __all__)}")
