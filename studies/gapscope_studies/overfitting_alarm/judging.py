"""What a rule was worth on a pool of watched trainings: hits, false alarms, delay, accuracy kept, with intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gapscope_studies.overfitting_alarm.rules import Rule, Settings
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
        best: Largest test accuracy at a recording.
        final: Mean test accuracy of the last three recordings.
        kept: Test accuracy where the rule is raised, `final` where it is not.
        raised: Whether it was raised.
        premature: Whether test accuracy rose more than two points above its maximum so far after the alarm.
        delay: Epochs from the (first) best recording to the alarm; NaN without an alarm.
    """

    kind: str
    noise: float
    best: float
    final: float
    kept: float
    raised: bool
    premature: bool
    delay: float

    @property
    def overfits(self) -> bool:
        """Whether accuracy ends more than four points below its best."""
        return self.best - self.final > OVERFITS

    @property
    def stays(self) -> bool:
        """Whether accuracy ends less than two points below its best."""
        return self.best - self.final < STAYS

    @property
    def hit(self) -> bool:
        """Raised, not prematurely, and in time to keep at least half of what was about to be lost."""
        return self.raised and not self.premature and self.kept >= (self.best + self.final) / 2


def judge(rule: Rule, settings: Settings, run: Run) -> Verdict:
    """Return what the rule says of a run; a rule that needs a split is judged on the network trained without it."""
    accuracy = np.array((run.held_out if rule.needs_split else run.columns)["test_accuracy"])
    index = rule.stops_at(run, **settings)
    final, best = float(accuracy[-FINAL:].mean()), int(accuracy.argmax())
    raised = index is not None
    return Verdict(
        kind=run.case.kind,
        noise=run.case.spec.data.label_noise,
        best=float(accuracy[best]),
        final=final,
        kept=float(accuracy[index]) if raised else final,
        raised=raised,
        premature=raised and bool(accuracy[index:].max() > accuracy[: index + 1].max() + LATER_GAIN),
        delay=float(run.epochs[index] - run.epochs[best]) if raised else float("nan"),
    )


def cost(verdicts: Sequence[Verdict]) -> float:
    """Accuracy lost against the best, plus five points for each alarm on a run that stays; means over runs."""
    lost = np.mean([v.best - v.kept for v in verdicts])
    alarms = [v.raised for v in verdicts if v.stays]
    return float(lost + FALSE_ALARM_COST * (np.mean(alarms) if alarms else 0.0))


def tuned(rule: Rule, runs: Sequence[Run]) -> Settings:
    """Settings of the smallest cost on these runs, the first of equals."""
    return min(rule.settings(), key=lambda settings: cost([judge(rule, settings, run) for run in runs]))


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
    "best - kept": lambda verdicts: _mean([v.best - v.kept for v in verdicts]),
}
