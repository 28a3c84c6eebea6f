"""Overfitting alarms compared with baselines, on their own training runs: detection of the peak of test accuracy.

Rules are tuned on one pool, all with the same budget, and judged on another of other data sizes, architectures,
optimizers, noise levels and seeds. The true peak is known from test data, which no rule sees.
"""

from gapscope_studies.overfitting_alarm.study import STUDY as STUDY
