"""The two parts of the study: tuning the rules on one pool, judging them, as frozen, on another."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from matplotlib.figure import Figure

from gapscope_studies.kit import plots
from gapscope_studies.kit.claims import Claim, ComparisonArm, measured
from gapscope_studies.kit.pool import data_hashes
from gapscope_studies.kit.provenance import git
from gapscope_studies.kit.statistics import Interval, bootstrap
from gapscope_studies.kit.study import Outcome, Part, RunSettings, Study
from gapscope_studies.overfitting_alarm.judging import (
    BEST_CHECKPOINT,
    DEFINITIONS,
    END,
    EPOCH_OF_SPLIT,
    FALSE_ALARM_COST,
    ORACLE,
    STATISTICS,
    Verdict,
    baselines_of,
    cost,
    evaluate_rule,
    tuned,
)
from gapscope_studies.overfitting_alarm.rules import RULES, Rule, Settings
from gapscope_studies.overfitting_alarm.runs import Case, Run, cases, runs

Verdicts = dict[str, list[Verdict]]
NOISY = 0.2
FROZEN = Path(__file__).with_name("frozen.toml")
# The alarm whose observations a rule needs, as its time is kept; those of the training pass cost nothing.
TIMED = {
    "shared learning": ("shared_learning",),
    "joint": ("shared_learning", "gradient_weight_alignment", "initial_kernel"),
    "left-out agreement": ("label_wave", "initial_kernel"),
    "Label Wave": (),
    "Label Wave, watched samples": ("label_wave",),
    "gradient-weight alignment": ("gradient_weight_alignment",),
    "gradient disparity": ("gradient_disparity",),
    "evidence": ("evidence",),
    "canaries": ("canaries",),
    "Label Wave behind the initial kernel": ("initial_kernel",),
    "alignment behind the initial kernel": ("gradient_weight_alignment", "initial_kernel"),
    "shared learning behind the initial kernel": ("shared_learning", "initial_kernel"),
    "Label Wave behind canaries": ("canaries",),
    "training loss": (),
}


def frozen(setting: RunSettings) -> tuple[str, dict[str, Settings]]:
    """The default rule, and the settings of every rule, as they were fixed before the judging pool was trained."""
    content = setting.read(FROZEN, "frozen")
    return content["default"], {name: dict(settings) for name, settings in content["rules"].items()}


def _counts(verdicts: Sequence[Verdict]) -> dict[str, int]:
    overfit, stay = (sum(getattr(v, name) for v in verdicts) for name in ("overfits", "stays"))
    return {"runs": len(verdicts), "overfit": overfit, "stay": stay, "clean": sum(v.noise == 0 for v in verdicts)}


def _scale(setting: RunSettings, wanted: Sequence[Case], found: Sequence[Run]) -> dict[str, Any]:
    specs = [run.case.spec for run in found]
    rows = {
        "data": ", ".join(dict.fromkeys(spec.data.name for spec in specs)),
        "network": ", ".join(dict.fromkeys(run.case.kind for run in found)),
        "training samples": f"{min(run.case.n for run in found)} to {max(run.case.n for run in found)}",
        "epochs": f"{min(s.training.epochs for s in specs)} to {max(s.training.epochs for s in specs)}",
        "networks": f"{len(found)} of {len(wanted)} planned, each whole, without a tenth, and with canaries",
    }
    return {
        "stands_in_for": [{"what": what, "paper": "", "here": here} for what, here in rows.items()],
        "seeds": sorted({spec.seed for spec in specs}),
        "data": data_hashes(setting, specs),
    }


def tuning(setting: RunSettings) -> Outcome:
    """Tune every rule among about as many settings on the same pool."""
    expected = cases(setting, "tuning")
    result = runs(setting, expected)
    chosen = {rule.name: tuned(rule, result) for rule in RULES}
    verdicts = {rule.name: [evaluate_rule(rule, chosen[rule.name], run) for run in result] for rule in RULES}
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
        numbers={"counts": _counts(verdicts[RULES[0].name]), "chosen": chosen, "table": table.to_dict("records")},
        tables={"Tuned rules, on the runs that they were tuned on": table},
        verdict=(
            f"Cost: accuracy lost against the best, plus {100 * FALSE_ALARM_COST:g} points for each alarm on a run "
            f"that stays. {DEFINITIONS}"
        ),
        **_scale(setting, expected, result),
    )


def _over_kinds(statistic: Callable[[list[Any]], float], items: Sequence[Any], kinds: Sequence[str]) -> Interval:
    """A statistic of runs with its interval over kinds. The same resamples for all rules, so that pairs stay pairs."""
    return bootstrap(lambda rows: statistic([items[i] for i in rows]), len(items), kinds, draws=1000)


def _average(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _ends(found: Interval) -> tuple[float, float, float]:
    """Value and both ends, NaN where there is no interval."""
    return (found.value, found.low, found.high) if math.isfinite(found.low) else (found.value, math.nan, math.nan)


def _kept(found: Sequence[Run], chosen: dict[str, Settings], verdicts: Verdicts) -> dict[str, list[float]]:
    """Test accuracy that every rule and every baseline keeps of each run."""
    split_loss = next(rule for rule in RULES if rule.name == "10 % split, loss")
    kept = {name: [v.kept for v in result] for name, result in verdicts.items()}
    kept |= {f"{name}, rolled back": [v.rolled_back for v in result] for name, result in verdicts.items()}
    others = [baselines_of(run, split_loss, chosen[split_loss.name]) for run in found]
    return kept | {name: [each[name] for each in others] for name in others[0]}


GROUPS: dict[str, Callable[[float], bool]] = {
    "all runs": lambda noise: True,
    "clean": lambda noise: noise == 0,
    "5 and 10 % wrong": lambda noise: 0 < noise < NOISY,
    "20 % wrong or more": lambda noise: noise >= NOISY,
}


def _differences(ours: Sequence[float], kept: dict[str, list[float]], found: Sequence[Run]) -> dict[str, Any]:
    """Accuracy kept beyond each other rule, by group of noise, paired, with intervals over kinds."""
    table: dict[str, Any] = {}
    for name, theirs in kept.items():
        gains = np.array(ours) - np.array(theirs)
        row = {}
        for group, holds in GROUPS.items():
            there = [i for i, run in enumerate(found) if holds(run.case.noise)]
            row[group] = _over_kinds(_average, gains[there].tolist(), [found[i].case.kind for i in there])
        table[name] = row
    return table


def _by_noise(kept: dict[str, list[float]], found: Sequence[Run]) -> pandas.DataFrame:
    rows = []
    for noise in sorted({run.case.noise for run in found}):
        there = [i for i, run in enumerate(found) if run.case.noise == noise]
        row = {"noise": noise, "runs": len(there)}
        rows.append(row | {name: float(np.mean([values[i] for i in there])) for name, values in kept.items()})
    return pandas.DataFrame(rows)


def _by_kind(verdicts: Sequence[Verdict]) -> pandas.DataFrame:
    names = ("hit rate", "false alarms", "premature", "delay", "kept", "kept - final", "best - kept")
    groups = {kind: [v for v in verdicts if v.kind == kind] for kind in dict.fromkeys(v.kind for v in verdicts)}
    return pandas.DataFrame(
        {"kind": kind, **_counts(group), **{name: STATISTICS[name](group) for name in names}}
        for kind, group in groups.items()
    )


def _claims(default: str, found: Sequence[Run], verdicts: Verdicts, kept: dict[str, list[float]]) -> list[Claim]:
    """All ours. Runs of a kind are one unit."""
    ours, gains = verdicts[default], _differences(kept[default], kept, found)
    learnt = []  # rules are judged on when they end training
    for kind in dict.fromkeys(run.case.kind for run in found):
        runs_of_kind = [run for run in found if run.case.kind == kind]
        case = runs_of_kind[0].case
        accuracy, loss = (
            float(np.median([run.columns[name][-1] for run in runs_of_kind]))
            for name in ("train_accuracy", "train_loss")
        )
        n_classes = 4 if case.quartiles else case.classes[1] if case.classes else 10
        learnt.append(
            ComparisonArm(name=kind, chance=1 / n_classes, finished=True, train_accuracy=accuracy, train_loss=loss)
        )
    unlike = "kinds are not compared with each other"

    def of(says: str, quantity: str, interval: Interval, **bounds: float) -> Claim:
        return measured(
            "alarm", says, quantity, interval, unit="kinds", ours=True, compared=learnt, reach=math.inf,
            loss_reach=math.inf, unequal=unlike, **bounds,
        )  # fmt: skip

    def rate(name: str) -> Interval:
        return _over_kinds(STATISTICS[name], ours, [v.kind for v in ours])

    quantity = "test accuracy kept, difference"
    return [
        of("the default alarm hits three of four", "hit rate", rate("hit rate"), above=0.75),
        of("it is rarely raised on a run that stays", "false alarms", rate("false alarms"), above=-1.0, below=0.1),
        of("it costs nothing on clean labels", quantity, gains[END]["clean"], above=-0.003),
        *(
            of(f"at 20 % wrong labels or more it keeps more than: {name}", quantity, gains[name]["20 % wrong or more"],
               above=0.0)
            for name in (END, BEST_CHECKPOINT, EPOCH_OF_SPLIT)
        ),
        of("rolling back to its peak keeps more than stopping at the alarm", quantity,
           _differences(kept[f"{default}, rolled back"], {default: kept[default]}, found)[default]["all runs"],
           above=0.0),
    ]  # fmt: skip


def _examples(found: Sequence[Run], rule: Rule, settings: Settings) -> Figure:
    """Test accuracy with the alarm, for the first kinds, one seed a noise."""
    kinds = list(dict.fromkeys(run.case.kind for run in found))[:6]
    figure, axes = plots.panels(len(kinds), height=2.4)
    for axis, kind in zip(axes, kinds, strict=True):
        chosen = {run.case.noise: run for run in found if run.case.kind == kind}
        for number, (noise, run) in enumerate(sorted(chosen.items())):
            accuracy, color = run.columns["test_accuracy"], f"C{number}"
            axis.plot(range(1, len(accuracy) + 1), accuracy, color=color, lw=1, label=f"{noise:.0%}")
            stop = rule.stops(run, **settings)
            if stop is not None:
                axis.plot(stop.at + 1, accuracy[stop.at], "v", color=color, ms=7)
        plots.named(axis, title=kind, ylim=(0, 1))
        axis.legend(fontsize=6, ncols=5, loc="lower right")
    figure.supxlabel("epoch", fontsize=9)
    figure.supylabel("test accuracy; triangle: alarm", fontsize=9)
    return figure


def _rules_table(found: Sequence[Run], verdicts: Verdicts) -> tuple[pandas.DataFrame, dict[str, Any]]:
    rows, intervals = [], {}
    for rule in RULES:
        items = verdicts[rule.name]
        kinds = [v.kind for v in items]
        there = {name: _over_kinds(statistic, items, kinds) for name, statistic in STATISTICS.items()}
        # CPU time of its observations against that of the training; unknown where it needs other training runs
        spent = sum(run.seconds[name] for run in found for name in TIMED.get(rule.name, ()))
        share = spent / sum(run.seconds["training"] for run in found) if rule.name in TIMED else math.nan
        text = {name: str(interval) for name, interval in there.items()}
        rows.append({"rule": rule.name} | text | {"CPU time of a training": f"{share:.1%}" if share == share else "-"})
        intervals[rule.name] = {name: _ends(interval) for name, interval in there.items()} | {"cpu_share": share}
    return pandas.DataFrame(rows), intervals


def judged(setting: RunSettings, wanted: Sequence[Case], found: Sequence[Run]) -> Outcome:
    """Judge the frozen rules on the runs that there are of the cases that were planned."""
    default, chosen = frozen(setting)
    frozen_in = git(FROZEN.parent, "log", "-1", "--format=%H %aI", "--", FROZEN.name)
    rule = next(rule for rule in RULES if rule.name == default)
    verdicts = {rule.name: [evaluate_rule(rule, chosen[rule.name], run) for run in found] for rule in RULES}
    kept = _kept(found, chosen, verdicts)
    table, intervals = _rules_table(found, verdicts)
    gains = _differences(kept[default], kept, found)
    figure, [axis] = plots.panels(1, width=7, height=0.35 * (len(kept) // 2) + 1.2)
    lost = {name: _over_kinds(_average, (np.array(kept[ORACLE]) - np.array(values)).tolist(),
                              [run.case.kind for run in found])
            for name, values in kept.items() if not name.endswith("rolled back") and name != ORACLE}  # fmt: skip
    plots.points(axis, lost)
    plots.named(axis, xlabel="accuracy lost against the best epoch on all data, mean with 95 % interval over kinds")
    return Outcome(
        numbers={
            "counts": _counts(verdicts[default]) | {"planned": len(wanted)},
            "default": default,
            "chosen": chosen,
            "frozen_in": dict(zip(("commit", "date"), frozen_in.split(), strict=False)),
            "trained": sorted(run.date for run in found if run.date),
            "rules": intervals,
            "kept": {name: float(np.mean(values)) for name, values in kept.items()},
            "default_beyond": {name: {g: _ends(i) for g, i in row.items()} for name, row in gains.items()},
            "by_noise": _by_noise(kept, found).to_dict("records"),
            "runs": [
                {"kind": run.case.kind, "noise": run.case.noise, "pairwise": run.case.pairwise}
                | {name: values[i] for name, values in kept.items()}
                for i, run in enumerate(found)
            ],
        },
        claims=_claims(default, found, verdicts, kept),
        tables={
            "All rules, with 95 % intervals over kinds": table,
            f"Accuracy kept by the default ({default}) beyond the others, paired": pandas.DataFrame(
                {"against": name} | {group: str(interval) for group, interval in row.items()}
                for name, row in gains.items() if name != default
            ),
            "Accuracy kept, by label noise": _by_noise(kept, found),
            "The default by kind of run": _by_kind(verdicts[default]),
        },
        figures={"lost": figure, "examples": _examples(found, rule, chosen[default])},
        verdict=DEFINITIONS,
        **_scale(setting, wanted, found),
    )  # fmt: skip


def judging(setting: RunSettings) -> Outcome:
    """Judge the frozen rules on runs of other data sizes, architectures, optimizers, noise levels and seeds."""
    expected = cases(setting, "judging")
    return judged(setting, expected, runs(setting, expected))


STUDY = Study(
    name="overfitting_alarm",
    title="An overfitting alarm without validation data",
    reference="Our own; the rules follow Yuan et al. 2024 (arXiv:2502.07551), Hoelzl et al. 2025 (arXiv:2510.25480), "
    "Forouzesh and Thiran 2021 (arXiv:2107.06665), Mahsereci et al. 2017 (arXiv:1703.09580) and others.",
    parts=(
        Part(
            "tuning",
            "Rules tuned on one pool of runs",
            tuning,
            "Ours: all rules are tuned with the same budget.",
            ours=True,
        ),
        Part(
            "judging",
            "Rules judged on another pool of runs",
            judging,
            "Ours: the training samples alone say when test accuracy has peaked.",
            ours=True,
        ),
    ),
)
