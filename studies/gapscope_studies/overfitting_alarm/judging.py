"""Evaluation of rules on recorded runs: hits, false alarms, delay, accuracy, baselines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gapscope_studies.overfitting_alarm.rules import CANARIES, SPLIT, WHOLE, Rule, Settings
from gapscope_studies.overfitting_alarm.runs import Run

OVERFITS, STAYS = 0.04, 0.02
LATER_GAIN = 0.02
FALSE_ALARM_COST = 0.05  # about half of what an alarm in time saves where a run overfits
DEFINITIONS = (
    f"A run overfits if test accuracy ends more than {100 * OVERFITS:g} points below its best recording, and stays if "
    f"less than {100 * STAYS:g}. Hit: raised where it overfits, not prematurely, and in time to keep at least half of "
    f"what is about to be lost. Premature: accuracy rises more than {100 * LATER_GAIN:g} points later. False alarm: "
    "any alarm on a run that stays. Delay: epochs from the best recording, median where it overfits. Kept: test "
    "accuracy at the alarm, at the end where there is none."
)
END, ORACLE = "end of training", "oracle: best epoch by the test samples"
BEST_CHECKPOINT = "nine tenths, best checkpoint by the split"
EPOCH_OF_SPLIT = "all data, at the split's best epoch"
STOP_OF_SPLIT = "all data, stopped where the split's loss says"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Result of one rule on one run. See DEFINITIONS."""

    kind: str
    noise: float
    best: float
    final: float  # mean of the last three epochs
    kept: float
    rolled_back: float  # accuracy at the peak of the rule
    overfits: bool
    stays: bool
    raised: bool
    premature: bool
    hit: bool
    delay: float  # epochs from the (first) best one to the alarm


def evaluate_rule(rule: Rule, settings: Settings, run: Run) -> Verdict:
    """Return the verdict of a rule on a run."""
    columns = {WHOLE: run.columns, SPLIT: run.split, CANARIES: run.with_canaries}[rule.network]
    accuracy, stop = np.array(columns["test_accuracy"]), rule.stops(run, **settings)
    final, peak = float(accuracy[-3:].mean()), int(accuracy.argmax())
    best = float(accuracy[peak])
    kept = final if stop is None else float(accuracy[stop.at])
    premature = stop is not None and bool(
        accuracy[stop.at :].max() > accuracy[: stop.at + 1].max() + LATER_GAIN
    )
    return Verdict(
        kind=run.case.kind,
        noise=run.case.noise,
        best=best,
        final=final,
        kept=kept,
        rolled_back=final if stop is None else float(accuracy[stop.peak]),
        overfits=best - final > OVERFITS,
        stays=best - final < STAYS,
        raised=stop is not None,
        premature=premature,
        hit=stop is not None and not premature and kept >= (best + final) / 2,
        delay=float("nan") if stop is None else float(stop.at - peak),
    )


def cost(verdicts: Sequence[Verdict]) -> float:
    """Return the mean accuracy lost against the best, plus five points per false alarm."""
    lost = np.mean([v.best - v.kept for v in verdicts])
    alarms = [v.raised for v in verdicts if v.stays]
    return float(lost + FALSE_ALARM_COST * (np.mean(alarms) if alarms else 0.0))


def tune(rule: Rule, runs: Sequence[Run]) -> Settings:
    """Return the first settings of the smallest cost on these runs."""
    return min(
        rule.settings(),
        key=lambda settings: cost([evaluate_rule(rule, settings, run) for run in runs]),
    )


def _mean(values: Sequence[Any]) -> float:
    return float(np.mean(values)) if len(values) else float("nan")


STATISTICS: dict[str, Callable[[Sequence[Verdict]], float]] = {
    "hit rate": lambda verdicts: _mean([v.hit for v in verdicts if v.overfits]),
    "raised where it overfits": lambda verdicts: _mean([v.raised for v in verdicts if v.overfits]),
    "false alarms": lambda verdicts: _mean([v.raised for v in verdicts if v.stays]),
    "premature": lambda verdicts: _mean([v.premature for v in verdicts]),
    "delay": lambda verdicts: float(
        np.median([v.delay for v in verdicts if v.overfits and v.raised] or [np.nan])
    ),
    "kept": lambda verdicts: _mean([v.kept for v in verdicts]),
    "kept - final": lambda verdicts: _mean([v.kept - v.final for v in verdicts]),
    "rolled back": lambda verdicts: _mean([v.rolled_back for v in verdicts]),
    "best - kept": lambda verdicts: _mean([v.best - v.kept for v in verdicts]),
}


def baselines_of(run: Run, split_loss: Rule, settings: Settings) -> dict[str, float]:
    """Return the test accuracy that each baseline keeps (`split_loss`: rule on the tenth)."""
    whole, split = run.columns["test_accuracy"], run.split["test_accuracy"]
    end, stop = float(np.mean(whole[-3:])), split_loss.stops(run, **settings)
    best_of_split = int(np.argmax(run.split["accuracy"]))
    return {
        END: end,
        BEST_CHECKPOINT: split[best_of_split],
        EPOCH_OF_SPLIT: whole[best_of_split],
        STOP_OF_SPLIT: end if stop is None else whole[stop.at],
        ORACLE: max(whole),
    }
