"""Overfitting alarms and baselines, tuned on one pool of runs and evaluated on another."""

from gapscope_studies.overfitting_alarm.study import STUDY as STUDY
