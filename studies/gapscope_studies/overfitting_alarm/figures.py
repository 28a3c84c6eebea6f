"""Figures of the study."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from gapscope_studies.overfitting_alarm.judging import STATISTICS, Verdict, interval
from gapscope_studies.overfitting_alarm.rules import ALARM, Settings
from gapscope_studies.overfitting_alarm.runs import Run


def examples(found: list[Run], settings: Settings) -> Figure:
    """Test accuracy, with the alarm and the end of the split rule, for the first kinds at growing noise."""
    kinds = list(dict.fromkeys(run.case.kind for run in found))[:6]
    figure = Figure(figsize=(9, 2 + 1.7 * ((len(kinds) + 1) // 2)), layout="constrained")
    axes = figure.subplots((len(kinds) + 1) // 2, 2, squeeze=False).flat
    for axis, kind in zip(axes, kinds, strict=False):
        seed = min(run.case.spec.seed for run in found if run.case.kind == kind)
        chosen = [run for run in found if run.case.kind == kind and run.case.spec.seed == seed]
        for number, run in enumerate(sorted(chosen, key=lambda run: run.case.spec.data.label_noise)):
            accuracy, color = run.columns["test_accuracy"], f"C{number}"
            axis.plot(run.epochs, accuracy, color=color, lw=1, label=f"{run.case.spec.data.label_noise:.0%}")
            index = ALARM.stops_at(run, **settings)
            if index is not None:
                axis.plot(run.epochs[index], accuracy[index], "v", color=color, ms=7)
        axis.set_title(kind, fontsize=9)
        axis.set_ylim(0, 1)
        axis.tick_params(labelsize=7)
        axis.legend(fontsize=6, ncols=5, loc="lower right")
    figure.supxlabel("epoch", fontsize=9)
    figure.supylabel("test accuracy; triangle: alarm", fontsize=9)
    return figure


def lost(verdicts: dict[str, list[Verdict]], draws: np.ndarray) -> Figure:
    """Accuracy lost against the best recording by each rule, with intervals."""
    figure = Figure(figsize=(7, 0.35 * len(verdicts) + 1.2), layout="constrained")
    axis = figure.subplots()
    function = STATISTICS["best - kept"]
    for place, (name, found) in enumerate(reversed(verdicts.items())):
        low, high = interval(function, found, draws)
        axis.plot([low, high], [place, place], color="C0" if name == ALARM.name else "0.5", lw=2)
        axis.plot(function(found), place, "o", color="C0" if name == ALARM.name else "0.5")
    axis.set_yticks(range(len(verdicts)), list(reversed(verdicts)), fontsize=8)
    axis.set_xlabel("accuracy lost against the best recording, mean over runs with 95 % interval", fontsize=8)
    axis.set_xlim(left=0)
    return figure
