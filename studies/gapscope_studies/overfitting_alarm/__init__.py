"""Can the training samples alone say when test accuracy has peaked? The alarm beside its baselines, on runs of its own.

Rules are tuned on one pool, all with the same budget, and judged on another of other data sizes, architectures,
optimizers, noise levels and seeds. The true peak is known from test data, which no rule sees.
"""

from gapscope_studies.overfitting_alarm.study import STUDY as STUDY
