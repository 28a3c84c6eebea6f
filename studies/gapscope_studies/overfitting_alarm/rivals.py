"""Baselines of the alarms: test accuracy at their epochs, and without a rule."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gapscope_studies.overfitting_alarm.judging import accuracies, final_of
from gapscope_studies.overfitting_alarm.rules import SPLIT, WHOLE, Rule, Settings
from gapscope_studies.overfitting_alarm.runs import Run

END, ORACLE = "end of training", "oracle: best epoch by the test samples"
BEST_CHECKPOINT = "nine tenths, best checkpoint by the split"
EPOCH_OF_SPLIT = "all data, at the split's best epoch"
STOP_OF_SPLIT = "all data, stopped where the split's loss says"


def _best_of_split(run: Run) -> int:
    return int(np.argmax(run.split["accuracy"]))


def _stop_of_split(run: Run, rule: Rule, settings: Settings) -> float:
    stop, accuracy = rule.stops(run, **settings), accuracies(run, WHOLE)
    return final_of(accuracy) if stop is None else float(accuracy[stop.at])


def rivals(split_loss: Rule, settings: Settings) -> dict[str, Callable[[Run], float]]:
    """Name -> test accuracy that a run keeps.

    Args:
        split_loss: The rule that watches the loss on the tenth.
        settings: Its tuned settings.
    """
    return {
        END: lambda run: final_of(accuracies(run, WHOLE)),
        BEST_CHECKPOINT: lambda run: float(accuracies(run, SPLIT)[_best_of_split(run)]),
        EPOCH_OF_SPLIT: lambda run: float(accuracies(run, WHOLE)[_best_of_split(run)]),
        STOP_OF_SPLIT: lambda run: _stop_of_split(run, split_loss, settings),
        ORACLE: lambda run: float(accuracies(run, WHOLE).max()),
    }
