"""The two parts of the study: tuning the rules on one pool, judging them on another."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from gapscope_studies.kit.study import Outcome, Setting
from gapscope_studies.overfitting_alarm.figures import examples, lost
from gapscope_studies.overfitting_alarm.judging import (
    DEFINITIONS,
    FALSE_ALARM_COST,
    STATISTICS,
    Verdict,
    cost,
    interval,
    judge,
    resampled,
    tuned,
)
from gapscope_studies.overfitting_alarm.pools import judging_cases, tuning_cases
from gapscope_studies.overfitting_alarm.rules import ALARM, RULES, Rule, Settings
from gapscope_studies.overfitting_alarm.runs import Run, runs

if TYPE_CHECKING:
    import pandas


@lru_cache(maxsize=1)
def _tuned(setting: Setting) -> tuple[list[Run], dict[str, Settings]]:
    found = runs(setting, tuning_cases(setting))
    return found, {rule.name: tuned(rule, found) for rule in RULES}


def _written(settings: Settings) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in settings.items())


def _counts(verdicts: Sequence[Verdict]) -> dict[str, int]:
    return {
        "runs": len(verdicts),
        "overfit": sum(v.overfits for v in verdicts),
        "stay": sum(v.stays for v in verdicts),
    }


def tuning(setting: Setting) -> Outcome:
    """Tune every rule among about as many settings on the same pool."""
    import pandas

    found, chosen = _tuned(setting)
    verdicts = {rule.name: [judge(rule, chosen[rule.name], run) for run in found] for rule in RULES}
    table = pandas.DataFrame(
        {
            "rule": rule.name,
            "looks at": rule.title,
            "tried": len(rule.settings()),
            "chosen": _written(chosen[rule.name]),
            "cost": cost(verdicts[rule.name]),
        }
        | {name: statistic(verdicts[rule.name]) for name, statistic in STATISTICS.items()}
        for rule in RULES
    )
    counts = _counts(verdicts[ALARM.name])
    best = min(RULES, key=lambda rule: cost(verdicts[rule.name]))
    return Outcome(
        numbers={"counts": counts, "chosen": chosen, "table": table.to_dict("records")},
        tables={"Tuned rules, on the runs that they were tuned on": table},
        verdict=(
            f"{counts['runs']} runs, of which {counts['overfit']} overfit and {counts['stay']} stay. Cost: accuracy "
            f"lost against the best, plus {100 * FALSE_ALARM_COST:g} points for each alarm on a run that stays. "
            f"The smallest cost has '{best.name}' ({cost(verdicts[best.name]):.3f}). {DEFINITIONS}"
        ),
        seeds=sorted({run.case.spec.seed for run in found}),
    )


def _judged_table(verdicts: dict[str, list[Verdict]], draws: np.ndarray) -> pandas.DataFrame:
    import pandas

    rows = []
    for name, found in verdicts.items():
        row: dict[str, Any] = {"rule": name}
        for statistic, function in STATISTICS.items():
            low, high = interval(function, found, draws)
            digits = 0 if statistic == "delay" else 3
            row[statistic] = f"{function(found):.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
        rows.append(row)
    return pandas.DataFrame(rows)


def _by_noise(verdicts: dict[str, list[Verdict]]) -> pandas.DataFrame:
    import pandas

    ours = verdicts[ALARM.name]
    rows = []
    for noise in sorted({v.noise for v in ours}):
        there = [i for i, v in enumerate(ours) if v.noise == noise]
        row = {"noise": noise, "runs": len(there), "best": np.mean([ours[i].best for i in there])}
        row |= {name: np.mean([found[i].kept for i in there]) for name, found in verdicts.items()}
        rows.append(row | {"final": np.mean([ours[i].final for i in there])})
    return pandas.DataFrame(rows)


def _alarm_by_kind(found: list[Verdict]) -> pandas.DataFrame:
    import pandas

    kinds = list(dict.fromkeys(v.kind for v in found))
    names = ("hit rate", "false alarms", "premature", "delay", "kept", "kept - final", "best - kept")
    groups = {kind: [v for v in found if v.kind == kind] for kind in kinds}
    rows = [
        {"kind": kind, **_counts(group), **{name: STATISTICS[name](group) for name in names}}
        for kind, group in groups.items()
    ]
    return pandas.DataFrame(rows)


def _kept_differences(verdicts: dict[str, list[Verdict]], draws: np.ndarray) -> pandas.DataFrame:
    import pandas

    rows = []
    for name, found in verdicts.items():
        if name == ALARM.name:
            continue
        pairs = list(zip(verdicts[ALARM.name], found, strict=True))
        low, high = interval(lambda items: float(np.mean([a.kept - b.kept for a, b in items])), pairs, draws)
        mean = float(np.mean([a.kept - b.kept for a, b in pairs]))
        rows.append({"against": name, "accuracy kept more": f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]"})
    return pandas.DataFrame(rows)


def _share(found: list[Run]) -> dict[str, float]:
    """Wall time of the alarm's observations: for each recording, and against the training itself."""
    alarm = sum(run.seconds["alarm"] for run in found)
    return {
        "seconds_per_observation": alarm / sum(len(run.epochs) for run in found),
        "share_of_training": alarm / sum(run.seconds["training"] for run in found),
    }


def judging(setting: Setting) -> Outcome:
    """Judge the tuned rules on runs of other data sizes, architectures, optimisers, noise levels and seeds."""
    _, chosen = _tuned(setting)
    found = runs(setting, judging_cases(setting))
    verdicts = {rule.name: [judge(rule, chosen[rule.name], run) for run in found] for rule in RULES}
    draws = resampled(len(found))
    counts, ours = _counts(verdicts[ALARM.name]), verdicts[ALARM.name]
    values = {rule.name: {name: f(verdicts[rule.name]) for name, f in STATISTICS.items()} for rule in RULES}
    split = max((rule for rule in RULES if rule.needs_split), key=lambda rule: values[rule.name]["kept"])
    return Outcome(
        numbers={
            "counts": counts,
            "chosen": chosen,
            "values": values,
            "intervals": {
                name: {statistic: interval(f, items, draws) for statistic, f in STATISTICS.items()}
                for name, items in verdicts.items()
            },
            "alarm_cost": _share(found),
            "runs": [
                {"kind": v.kind, "noise": v.noise, "best": v.best, "final": v.final, "kept": v.kept, "delay": v.delay}
                for v in ours
            ],
        },
        tables={
            "All rules, with 95 % intervals over runs": _judged_table(verdicts, draws),
            "Accuracy kept by the alarm beyond the others, paired": _kept_differences(verdicts, draws),
            "The alarm by kind of run": _alarm_by_kind(ours),
            "Accuracy kept, by label noise": _by_noise(verdicts),
        },
        figures={"lost": lost(verdicts, draws), "examples": examples(found, chosen[ALARM.name])},
        verdict=_judged_in_words(counts, values, split),
        seeds=sorted({run.case.spec.seed for run in found}),
    )


def _judged_in_words(counts: dict[str, int], values: dict[str, dict[str, float]], split: Rule) -> str:
    ours, theirs = values[ALARM.name], values[split.name]
    disparity, loss = values["gradient disparity"]["kept"], values["training loss"]["kept"]
    return (
        f"On {counts['runs']} runs that no rule was tuned on ({counts['overfit']} overfit, {counts['stay']} stay) the "
        f"alarm has a hit rate of {ours['hit rate']:.2f}, is premature on {ours['premature']:.2f} of all runs and is "
        f"raised on {ours['false alarms']:.2f} of those that stay; median delay {ours['delay']:.0f} epochs. Stopping "
        f"there keeps a test accuracy of {ours['kept']:.3f}: {ours['kept - final']:+.3f} against the end, "
        f"{ours['best - kept']:.3f} below the best recording. The better split ('{split.name}') keeps "
        f"{theirs['kept']:.3f} with a hit rate of {theirs['hit rate']:.2f} and alarms on "
        f"{theirs['false alarms']:.2f} of the runs that stay; gradient disparity keeps {disparity:.3f}, "
        f"training loss alone {loss:.3f}. {DEFINITIONS}"
    )
