"""The two parts of the study: tuning the rules on one pool, judging them on another."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas
from matplotlib.figure import Figure

from gapscope.base.specs import Spec
from gapscope_studies.kit import plots
from gapscope_studies.kit.claims import Claim, Compared, claim
from gapscope_studies.kit.pool import data_hashes, stands_in_for
from gapscope_studies.kit.statistics import Interval, bootstrap
from gapscope_studies.kit.study import Outcome, Part, Setting, Study
from gapscope_studies.overfitting_alarm.judging import (
    DEFINITIONS,
    FALSE_ALARM_COST,
    STATISTICS,
    Verdict,
    cost,
    judge,
    tuned,
)
from gapscope_studies.overfitting_alarm.rules import ALARM, RULES, Settings
from gapscope_studies.overfitting_alarm.runs import Run, cases, runs

Verdicts = dict[str, list[Verdict]]
LITTLE_NOISE = 0.15
RIVALS = ("10 % split, loss", "10 % split, accuracy", "gradient disparity", "training loss")


def _tuned(setting: Setting) -> tuple[list[Run], dict[str, Settings]]:
    found = runs(setting, cases(setting, "tuning"))
    return found, {rule.name: tuned(rule, found) for rule in RULES}


def _judged(chosen: dict[str, Settings], found: Sequence[Run]) -> Verdicts:
    return {rule.name: [judge(rule, chosen[rule.name], run) for run in found] for rule in RULES}


def _counts(verdicts: Sequence[Verdict]) -> dict[str, int]:
    overfit, stay = (sum(getattr(v, name) for v in verdicts) for name in ("overfits", "stays"))
    return {"runs": len(verdicts), "overfit": overfit, "stay": stay}


def _scale(setting: Setting, found: Sequence[Run]) -> dict[str, Any]:
    specs: list[Spec] = [run.case.spec for run in found]
    return {
        "stands_in_for": stands_in_for(setting, specs),
        "seeds": sorted({spec.seed for spec in specs}),
        "data": data_hashes(setting, specs),
    }


def tuning(setting: Setting) -> Outcome:
    """Tune every rule among about as many settings on the same pool."""
    found, chosen = _tuned(setting)
    verdicts = _judged(chosen, found)
    table = pandas.DataFrame(
        {
            "rule": rule.name,
            "looks at": rule.title,
            "tried": len(rule.settings()),
            "chosen": ", ".join(f"{name} {value:g}" for name, value in chosen[rule.name].items()),
            "cost": cost(verdicts[rule.name]),
        }
        | {name: statistic(verdicts[rule.name]) for name, statistic in STATISTICS.items()}
        for rule in RULES
    )
    return Outcome(
        numbers={"counts": _counts(verdicts[ALARM.name]), "chosen": chosen, "table": table.to_dict("records")},
        tables={"Tuned rules, on the runs that they were tuned on": table},
        verdict=(
            f"Cost: accuracy lost against the best, plus {100 * FALSE_ALARM_COST:g} points for each alarm on a run "
            f"that stays. {DEFINITIONS}"
        ),
        **_scale(setting, found),
    )


def _over_runs(statistic: Callable[[list[Any]], float], items: Sequence[Any]) -> Interval:
    """A statistic of runs with its bootstrap interval; the same resamples for all rules, so that pairs stay pairs."""
    return bootstrap(lambda rows: statistic([items[i] for i in rows]), len(items))


def _ends(found: Interval) -> tuple[float, float]:
    """Both ends, NaN where the statistic has no value in any resample."""
    return (found.low, found.high) if math.isfinite(found.low) else (math.nan, math.nan)


def _by_noise(verdicts: Verdicts) -> pandas.DataFrame:
    ours, rows = verdicts[ALARM.name], []
    for noise in sorted({v.noise for v in ours}):
        there = [i for i, v in enumerate(ours) if v.noise == noise]
        row = {"noise": noise, "runs": len(there), "best": np.mean([ours[i].best for i in there])}
        row |= {name: np.mean([found[i].kept for i in there]) for name, found in verdicts.items()}
        rows.append(row | {"final": np.mean([ours[i].final for i in there])})
    return pandas.DataFrame(rows)


def _alarm_by_kind(found: list[Verdict]) -> pandas.DataFrame:
    names = ("hit rate", "false alarms", "premature", "delay", "kept", "kept - final", "best - kept")
    groups = {kind: [v for v in found if v.kind == kind] for kind in dict.fromkeys(v.kind for v in found)}
    return pandas.DataFrame(
        {"kind": kind, **_counts(group), **{name: STATISTICS[name](group) for name in names}}
        for kind, group in groups.items()
    )


def _share(found: list[Run]) -> dict[str, float]:
    """Wall time of the alarm's observations: for each recording, and against the training itself."""
    alarm = sum(run.seconds["alarm"] for run in found)
    return {
        "seconds_per_observation": alarm / sum(len(run.epochs) for run in found),
        "share_of_training": alarm / sum(run.seconds["training"] for run in found),
    }


def fair_rivals(found: Sequence[Run], chosen: dict[str, Settings], verdicts: Verdicts) -> dict[str, list[float]]:
    """Test accuracy of each run under two rivals with a tenth held out that the tuned rules do not include.

    The network on all data, stopped at the epoch that the split's loss names; and the network on nine tenths, at its
    best recording by accuracy on the tenth.
    """
    split = next(rule for rule in RULES if rule.name == "10 % split, loss")
    stops = [split.stops_at(run, **chosen[split.name]) for run in found]
    finals = [v.final for v in verdicts[ALARM.name]]
    return {
        "all data, stopped where the split's loss says": [
            final if stop is None else run.columns["test_accuracy"][stop]
            for run, stop, final in zip(found, stops, finals, strict=True)
        ],
        "nine tenths, best checkpoint by the split": [
            run.held_out["test_accuracy"][int(np.argmax(run.held_out["accuracy"]))] for run in found
        ],
    }


def _claims(found: Sequence[Run], chosen: dict[str, Settings], verdicts: Verdicts) -> list[Claim]:
    """All ours; runs of a kind are one unit."""
    ours = verdicts[ALARM.name]
    learnt = Compared(
        name="watched networks", chance=0.1,
        train_accuracy=float(np.mean([run.columns["train_accuracy"][-1] for run in found])),
    )  # fmt: skip

    def over(says: str, quantity: str, values: Sequence[float], there: Sequence[Verdict] = ours, **more: Any) -> Claim:
        more = {"above": 0.0, "ours": True, "unit": "kinds", "compared": (learnt,)} | more
        return claim("alarm", says, quantity, values, clusters=[v.kind for v in there], **more)

    clean, little = ([v for v in ours if v.noise <= most] for most in (0.0, LITTLE_NOISE))
    stays = [v for v in ours if v.stays]
    rivals = {name: [v.kept for v in verdicts[name]] for name in RIVALS} | fair_rivals(found, chosen, verdicts)
    quantity = "test accuracy kept, difference"
    return [
        over("stopping at the alarm keeps more than training to the end", quantity, [v.kept - v.final for v in ours]),
        over("it costs nothing on clean labels", quantity, [v.kept - v.final for v in clean], clean, above=-0.005),
        over(f"it gains at {LITTLE_NOISE:.0%} wrong labels or fewer", quantity, [v.kept - v.final for v in little],
             little),
        over("it is rarely raised on a run that stays", "share of alarms", [float(v.raised) for v in stays], stays,
             above=-1.0, below=0.1),
        *(over(f"it keeps more than: {name}", quantity, [v.kept - k for v, k in zip(ours, kept, strict=True)])
          for name, kept in rivals.items()),
    ]  # fmt: skip


def _examples(found: list[Run], settings: Settings) -> Figure:
    """Test accuracy with the alarm, for the first kinds at growing noise."""
    kinds = list(dict.fromkeys(run.case.kind for run in found))[:6]
    figure, axes = plots.panels(len(kinds), height=2.4, columns=2)
    for axis, kind in zip(axes, kinds, strict=True):
        seed = min(run.case.spec.seed for run in found if run.case.kind == kind)
        chosen = [run for run in found if run.case.kind == kind and run.case.spec.seed == seed]
        for number, run in enumerate(sorted(chosen, key=lambda run: run.case.spec.data.label_noise)):
            accuracy, color = run.columns["test_accuracy"], f"C{number}"
            axis.plot(run.epochs, accuracy, color=color, lw=1, label=f"{run.case.spec.data.label_noise:.0%}")
            index = ALARM.stops_at(run, **settings)
            if index is not None:
                axis.plot(run.epochs[index], accuracy[index], "v", color=color, ms=7)
        plots.named(axis, title=kind, ylim=(0, 1))
        axis.legend(fontsize=6, ncols=5, loc="lower right")
    figure.supxlabel("epoch", fontsize=9)
    figure.supylabel("test accuracy; triangle: alarm", fontsize=9)
    return figure


def judging(setting: Setting) -> Outcome:
    """Judge the tuned rules on runs of other data sizes, architectures, optimisers, noise levels and seeds."""
    _, chosen = _tuned(setting)
    found = runs(setting, cases(setting, "judging"))
    verdicts = _judged(chosen, found)
    ours = verdicts[ALARM.name]
    intervals = {name: {s: _over_runs(f, items) for s, f in STATISTICS.items()} for name, items in verdicts.items()}
    differences = {
        name: _over_runs(
            lambda pairs: float(np.mean([a.kept - b.kept for a, b in pairs])), list(zip(ours, theirs, strict=True))
        )
        for name, theirs in verdicts.items()
        if name != ALARM.name
    }
    figure, [axis] = plots.panels(1, width=7, height=0.35 * len(verdicts) + 1.2)
    plots.points(axis, {name: row["best - kept"] for name, row in intervals.items()})
    plots.named(axis, xlabel="accuracy lost against the best recording, mean over runs with 95 % interval")
    axis.set_xlim(left=0)
    return Outcome(
        numbers={
            "counts": _counts(ours),
            "chosen": chosen,
            "values": {name: {s: found.value for s, found in row.items()} for name, row in intervals.items()},
            "intervals": {name: {s: _ends(found) for s, found in row.items()} for name, row in intervals.items()},
            "alarm_cost": _share(found),
            "runs": [
                {name: getattr(v, name) for name in ("kind", "noise", "best", "final", "kept", "delay")} for v in ours
            ],
        },
        claims=_claims(found, chosen, verdicts),
        tables={
            "All rules, with 95 % intervals over runs": pandas.DataFrame(
                {"rule": name} | {statistic: str(found) for statistic, found in row.items()}
                for name, row in intervals.items()
            ),
            "Accuracy kept by the alarm beyond the others, paired": pandas.DataFrame(
                {"against": name, "accuracy kept more": str(found)} for name, found in differences.items()
            ),
            "The alarm by kind of run": _alarm_by_kind(ours),
            "Accuracy kept, by label noise": _by_noise(verdicts),
        },
        figures={"lost": figure, "examples": _examples(found, chosen[ALARM.name])},
        verdict=DEFINITIONS,
        **_scale(setting, found),
    )


STUDY = Study(
    name="overfitting_alarm",
    title="An overfitting alarm without validation data",
    reference="Our own; it follows Szolnoky et al. 2022 (arXiv:2205.12642), Sec. 3.3.",
    parts=(
        Part("tuning", "Rules tuned on one pool of runs", tuning, "Ours: all rules are tuned with the same budget."),
        Part(
            "judging",
            "Rules judged on another pool of runs",
            judging,
            "Ours: the training samples alone say when test accuracy has peaked.",
        ),
    ),
)
