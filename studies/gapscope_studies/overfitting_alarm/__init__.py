"""Overfitting alarms and baselines: rules are tuned on one pool of runs, frozen, and judged on another."""

from gapscope_studies.overfitting_alarm.study import STUDY as STUDY
