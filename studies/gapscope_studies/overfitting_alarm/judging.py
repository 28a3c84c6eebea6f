"""Evaluation of a rule on a pool of monitored runs: hits, false alarms, delay, accuracy retained, with intervals."""

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
FINAL = 3
DEFINITIONS = (
    f"A run overfits if test accuracy ends more than {100 * OVERFITS:g} points below its best recording, and stays if "
    f"less than {100 * STAYS:g}. Hit: raised where it overfits, not prematurely, and in time to keep at least half of "
    f"what is about to be lost. Premature: accuracy rises more than {100 * LATER_GAIN:g} points later. False alarm: "
    "any alarm on a run that stays. Delay: epochs from the best recording, median where it overfits. Kept: test "
    "accuracy at the alarm, at the end where there is none."
)


@dataclass(frozen=True)
class Verdict:
    """One rule on one run.

    Attributes:
        kind: Kind of the run.
        noise: Its label noise.
        best: Largest test accuracy of the network that the rule watches.
        final: Mean test accuracy of its last three epochs.
        whole: The same of the network on all data without canaries: what was to be had without a rule.
        kept: Test accuracy where the rule stops, `final` where it does not.
        rolled_back: Test accuracy at the epoch that the rule calls the best one, `final` where it does not stop.
        raised: Whether it was raised.
        premature: Whether test accuracy rose more than two points above its maximum so far after the alarm.
        delay: Epochs from the (first) best one to the alarm; NaN without an alarm.
    """

    kind: str
    noise: float
    best: float
    final: float
    whole: float
    kept: float
    rolled_back: float
    raised: bool
    premature: bool
    delay: float

    @property
    def overfits(self) -> bool:
        """Return whether accuracy ends more than four points below its best."""
        return self.best - self.final > OVERFITS

    @property
    def stays(self) -> bool:
        """Return whether accuracy ends less than two points below its best."""
        return self.best - self.final < STAYS

    @property
    def hit(self) -> bool:
        """Raised, not prematurely, and in time to keep at least half of what was about to be lost."""
        return self.raised and not self.premature and self.kept >= (self.best + self.final) / 2


def accuracies(run: Run, network: str) -> np.ndarray:
    """Test accuracy after every epoch of one of the run's networks."""
    columns = {WHOLE: run.columns, SPLIT: run.split, CANARIES: run.with_canaries}[network]
    return np.array(columns["test_accuracy"])


def final_of(accuracy: np.ndarray) -> float:
    """Mean of the last epochs."""
    return float(accuracy[-FINAL:].mean())


def evaluate_rule(rule: Rule, settings: Settings, run: Run) -> Verdict:
    """Return what the rule says of a run. A rule is judged on the network that it watches."""
    accuracy, stop = accuracies(run, rule.network), rule.stops(run, **settings)
    final, best = final_of(accuracy), int(accuracy.argmax())
    return Verdict(
        kind=run.case.kind,
        noise=run.case.noise,
        best=float(accuracy[best]),
        final=final,
        whole=final_of(accuracies(run, WHOLE)),
        kept=final if stop is None else float(accuracy[stop.at]),
        rolled_back=final if stop is None else float(accuracy[stop.peak]),
        raised=stop is not None,
        premature=stop is not None and bool(accuracy[stop.at :].max() > accuracy[: stop.at + 1].max() + LATER_GAIN),
        delay=float("nan") if stop is None else float(stop.at - best),
    )


def cost(verdicts: Sequence[Verdict]) -> float:
    """Accuracy lost against the best, plus five points for each alarm on a run that stays. Means over runs."""
    lost = np.mean([v.best - v.kept for v in verdicts])
    alarms = [v.raised for v in verdicts if v.stays]
    return float(lost + FALSE_ALARM_COST * (np.mean(alarms) if alarms else 0.0))


def tuned(rule: Rule, runs: Sequence[Run]) -> Settings:
    """Settings of the smallest cost on these runs, the first of equals."""
    return min(rule.settings(), key=lambda settings: cost([evaluate_rule(rule, settings, run) for run in runs]))


def _mean(values: Sequence[Any]) -> float:
    return float(np.mean(values)) if len(values) else float("nan")


def _median(values: Sequence[float]) -> float:
    return float(np.median(values)) if len(values) else float("nan")


STATISTICS: dict[str, Callable[[Sequence[Verdict]], float]] = {
    "hit rate": lambda verdicts: _mean([v.hit for v in verdicts if v.overfits]),
    "raised where it overfits": lambda verdicts: _mean([v.raised for v in verdicts if v.overfits]),
    "false alarms": lambda verdicts: _mean([v.raised for v in verdicts if v.stays]),
    "premature": lambda verdicts: _mean([v.premature for v in verdicts]),
    "delay": lambda verdicts: _median([v.delay for v in verdicts if v.overfits and v.raised]),
    "kept": lambda verdicts: _mean([v.kept for v in verdicts]),
    "kept - final": lambda verdicts: _mean([v.kept - v.final for v in verdicts]),
    "rolled back": lambda verdicts: _mean([v.rolled_back for v in verdicts]),
    "best - kept": lambda verdicts: _mean([v.best - v.kept for v in verdicts]),
}
