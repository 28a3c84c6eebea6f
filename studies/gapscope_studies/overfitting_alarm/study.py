"""Stopping rules, tuned on one pool, then frozen and evaluated on another."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from matplotlib.figure import Figure

from gapscope_studies.kit import plots
from gapscope_studies.kit.claims import Claim, ComparisonArm, estimate
from gapscope_studies.kit.pool import data_hashes
from gapscope_studies.kit.provenance import git
from gapscope_studies.kit.statistics import Interval, bootstrap, bootstrap_mean
from gapscope_studies.kit.study import Outcome, Part, RunSettings, Study
from gapscope_studies.overfitting_alarm.judging import (
    BEST_CHECKPOINT,
    DEFINITIONS,
    END,
    EPOCH_OF_SPLIT,
    FALSE_ALARM_COST,
    STATISTICS,
    Verdict,
    baselines_of,
    cost,
    evaluate_rule,
    tune,
)
from gapscope_studies.overfitting_alarm.rules import RULES, Rule, Settings
from gapscope_studies.overfitting_alarm.runs import Case, Run, cases, runs

Verdicts = dict[str, list[Verdict]]
FROZEN = Path(__file__).with_name("frozen.toml")
# rule -> alarms whose observations it needs, by the names of their seconds; the training pass costs nothing
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
    "training loss": (),
}
GROUPS: dict[str, Callable[[float], bool]] = {
    "all runs": lambda noise: True,
    "clean": lambda noise: noise == 0,
    "5 and 10 % wrong": lambda noise: 0 < noise < 0.2,
    "20 % wrong or more": lambda noise: noise >= 0.2,
}


def frozen_settings(setting: RunSettings) -> tuple[str, dict[str, Settings]]:
    """Return the default rule and all settings, fixed before the judging pool was trained."""
    # it also has the settings of rules that have left the study
    content = setting.read(FROZEN, "frozen")
    return content["default"], {name: dict(content["rules"][name]) for name in RULES}


def _counts(verdicts: Sequence[Verdict]) -> dict[str, int]:
    overfit, stay = (sum(getattr(v, name) for v in verdicts) for name in ("overfits", "stays"))
    return {
        "runs": len(verdicts),
        "overfit": overfit,
        "stay": stay,
        "clean": sum(v.noise == 0 for v in verdicts),
    }


def _scale(setting: RunSettings, plan: Sequence[Case], recorded: Sequence[Run]) -> dict[str, Any]:
    specs = [run.case.spec for run in recorded]
    sizes, epochs = [run.case.n for run in recorded], [spec.training.epochs for spec in specs]
    rows = {
        "data": ", ".join(dict.fromkeys(spec.data.name for spec in specs)),
        "network": ", ".join(dict.fromkeys(run.case.kind for run in recorded)),
        "training samples": f"{min(sizes)} to {max(sizes)}",
        "epochs": f"{min(epochs)} to {max(epochs)}",
        "networks": f"{len(recorded)} of {len(plan)} planned, each whole, without a tenth, and with canaries",
    }
    return {
        "stands_in_for": [{"what": what, "paper": "", "here": here} for what, here in rows.items()],
        "seeds": sorted({spec.seed for spec in specs}),
        "data": data_hashes(setting, specs),
    }


def tuning(setting: RunSettings) -> Outcome:
    """Tune every rule among about as many settings on the same pool."""
    plan = cases(setting, "tuning")
    recorded = runs(setting, plan)
    best = {name: tune(rule, recorded) for name, rule in RULES.items()}
    verdicts = _verdicts(best, recorded)
    table = pandas.DataFrame(
        {
            "rule": name,
            "looks at": rule.title,
            "tried": len(rule.settings()),
            "chosen": ", ".join(f"{option} {value:g}" for option, value in best[name].items()),
            "cost": cost(verdicts[name]),
        }
        | {key: statistic(verdicts[name]) for key, statistic in STATISTICS.items()}
        for name, rule in RULES.items()
    )
    return Outcome(
        numbers={
            "counts": _counts(next(iter(verdicts.values()))),
            "chosen": best,
            "table": table.to_dict("records"),
        },
        tables={"Tuned rules, on the runs that they were tuned on": table},
        verdict=(
            f"Cost: accuracy lost against the best, plus {100 * FALSE_ALARM_COST:g} points for each alarm on a run "
            f"that stays. {DEFINITIONS}"
        ),
        **_scale(setting, plan, recorded),
    )


def _verdicts(settings: Mapping[str, Settings], recorded: Sequence[Run]) -> Verdicts:
    return {
        name: [evaluate_rule(rule, settings[name], run) for run in recorded]
        for name, rule in RULES.items()
    }


def _over_kinds(
    statistic: Callable[[list[Any]], float], items: Sequence[Any], kinds: Sequence[str]
) -> Interval:
    """Return a statistic of runs with its interval over kinds (the same resamples for all)."""
    return bootstrap(
        lambda rows: statistic([items[i] for i in rows]), len(items), kinds, draws=1000
    )


def _ends(interval: Interval) -> tuple[float, float, float]:
    ends = (interval.low, interval.high) if math.isfinite(interval.low) else (math.nan, math.nan)
    return (interval.value, *ends)


def _accuracies(
    recorded: Sequence[Run], settings: Mapping[str, Settings], verdicts: Verdicts
) -> pandas.DataFrame:
    """Return the test accuracy that each rule and baseline (columns) keeps per run (rows)."""
    name = "10 % split, loss"
    baselines = pandas.DataFrame(baselines_of(run, RULES[name], settings[name]) for run in recorded)
    columns = {name: [v.kept for v in items] for name, items in verdicts.items()}
    columns |= {
        f"{name}, rolled back": [v.rolled_back for v in items] for name, items in verdicts.items()
    }
    return pandas.concat([pandas.DataFrame(columns), baselines], axis=1)


def _gains(
    ours: pandas.Series, baselines: pandas.DataFrame, cases: Sequence[Case]
) -> dict[str, dict[str, Interval]]:
    """Return paired gains over each baseline by group of noise, with intervals over kinds."""
    table: dict[str, dict[str, Interval]] = {str(name): {} for name in baselines}
    for group, holds in GROUPS.items():
        rows = [i for i, case in enumerate(cases) if holds(case.noise)]
        kinds = [cases[i].kind for i in rows]
        for name in table:
            table[name][group] = bootstrap_mean(
                (ours - baselines[name]).iloc[rows], kinds, draws=1000
            )
    return table


def _claims(
    recorded: Sequence[Run],
    verdicts: Sequence[Verdict],
    gains: Mapping[str, Any],
    gain_of_peak: Interval,
) -> list[Claim]:
    """Return the claims about the default rule, all ours. Runs of a kind are one unit."""
    arms = []
    for kind in dict.fromkeys(run.case.kind for run in recorded):
        members = [run for run in recorded if run.case.kind == kind]
        case = members[0].case
        accuracy, loss = (
            float(np.median([run.columns[name][-1] for run in members]))
            for name in ("train_accuracy", "train_loss")
        )
        n_classes = 4 if case.quartiles else case.classes[1] if case.classes else 10
        arms.append(
            ComparisonArm(
                name=kind,
                chance=1 / n_classes,
                finished=True,
                train_accuracy=accuracy,
                train_loss=loss,
            )
        )
    hits, alarms = (
        _over_kinds(STATISTICS[name], verdicts, [v.kind for v in verdicts])
        for name in ("hit rate", "false alarms")
    )
    quantity = "test accuracy kept, difference"
    rows = [
        ("the default alarm hits three of four", "hit rate", hits, {"above": 0.75}),
        ("it is rarely raised on a run that stays", "false alarms", alarms, {"above": -1.0, "below": 0.1}),
        ("it costs nothing on clean labels", quantity, gains[END]["clean"], {"above": -0.003}),
        *(
            (f"at 20 % wrong labels or more it keeps more than: {name}", quantity, gains[name]["20 % wrong or more"],
             {"above": 0.0})
            for name in (END, BEST_CHECKPOINT, EPOCH_OF_SPLIT)
        ),
        ("rolling back to its peak keeps more than stopping at the alarm", quantity, gain_of_peak, {"above": 0.0}),
    ]  # fmt: skip
    limits: dict[str, Any] = {"reach": math.inf, "loss_reach": math.inf}
    return [
        estimate("alarm", statement, quantity, interval, unit="kinds", ours=True, compared=arms,
                 unequal="kinds are not compared with each other", **limits, **bounds)
        for statement, quantity, interval, bounds in rows
    ]  # fmt: skip


def _examples(recorded: Sequence[Run], rule: Rule, settings: Settings) -> Figure:
    """Plot test accuracy and alarm for the first kinds, one seed per noise."""
    kinds = list(dict.fromkeys(run.case.kind for run in recorded))[:6]
    figure, axes = plots.panels(len(kinds), height=2.4)
    for axis, kind in zip(axes, kinds, strict=True):
        by_noise = {run.case.noise: run for run in recorded if run.case.kind == kind}
        for number, (noise, run) in enumerate(sorted(by_noise.items())):
            accuracy, color = run.columns["test_accuracy"], f"C{number}"
            axis.plot(
                range(1, len(accuracy) + 1), accuracy, color=color, lw=1, label=f"{noise:.0%}"
            )
            stop = rule.stops(run, **settings)
            if stop is not None:
                axis.plot(stop.at + 1, accuracy[stop.at], "v", color=color, ms=7)
        plots.set_labels(axis, title=kind, ylim=(0, 1))
        axis.legend(fontsize=6, ncols=5, loc="lower right")
    figure.supxlabel("epoch", fontsize=9)
    figure.supylabel("test accuracy; triangle: alarm", fontsize=9)
    return figure


def judge(setting: RunSettings, plan: Sequence[Case], recorded: Sequence[Run]) -> Outcome:
    """Evaluate the frozen rules on the recorded runs of the planned cases."""
    default, settings = frozen_settings(setting)
    frozen_in = git(FROZEN.parent, "log", "-1", "--format=%H %aI", "--", FROZEN.name)
    verdicts, cases = _verdicts(settings, recorded), [run.case for run in recorded]
    kinds, noises = [case.kind for case in cases], [case.noise for case in cases]
    statistics: dict[str, dict[str, Interval]] = {}
    shares = {}  # CPU time of the observations over that of the training, NaN for rules with further training runs
    training = sum(run.seconds["training"] for run in recorded)
    for name, items in verdicts.items():
        statistics[name] = {
            key: _over_kinds(statistic, items, kinds) for key, statistic in STATISTICS.items()
        }
        spent = sum(run.seconds[alarm] for run in recorded for alarm in TIMED.get(name, ()))
        shares[name] = spent / training if name in TIMED else math.nan
    accuracies = _accuracies(recorded, settings, verdicts)
    gains = _gains(accuracies[default], accuracies, cases)
    gain_of_peak = _gains(accuracies[f"{default}, rolled back"], accuracies[[default]], cases)[
        default
    ]["all runs"]
    by_noise = accuracies.assign(noise=noises).groupby("noise").mean()
    by_noise.insert(0, "runs", pandas.Series(noises).value_counts())
    by_noise = by_noise.reset_index()
    by_kind = {
        kind: [v for v in verdicts[default] if v.kind == kind] for kind in dict.fromkeys(kinds)
    }
    names = (
        "hit rate",
        "false alarms",
        "premature",
        "delay",
        "kept",
        "kept - final",
        "best - kept",
    )
    return Outcome(
        numbers={
            "counts": _counts(verdicts[default]) | {"planned": len(plan)},
            "default": default,
            "chosen": settings,
            "frozen_in": dict(zip(("commit", "date"), frozen_in.split(), strict=False)),
            "trained": sorted(run.date for run in recorded if run.date),
            "rules": {
                name: {key: _ends(interval) for key, interval in row.items()} | {"cpu_share": shares[name]}
                for name, row in statistics.items()
            },
            "kept": accuracies.mean().to_dict(),
            "default_beyond": {name: {g: _ends(i) for g, i in row.items()} for name, row in gains.items()},
            "by_noise": by_noise.to_dict("records"),
        },
        claims=_claims(recorded, verdicts[default], gains, gain_of_peak),
        tables={
            "All rules, with 95 % intervals over kinds": pandas.DataFrame(
                {"rule": name} | {key: str(interval) for key, interval in row.items()}
                | {"CPU time of a training": f"{shares[name]:.1%}" if name in TIMED else "-"}
                for name, row in statistics.items()
            ),
            f"Accuracy kept by the default ({default}) beyond the others, paired": pandas.DataFrame(
                {"against": name} | {group: str(interval) for group, interval in row.items()}
                for name, row in gains.items() if name != default
            ),
            "Accuracy kept, by label noise": by_noise,
            "The default by kind of run": pandas.DataFrame(
                {"kind": kind, **_counts(group), **{name: STATISTICS[name](group) for name in names}}
                for kind, group in by_kind.items()
            ),
        },
        figures={"examples": _examples(recorded, RULES[default], settings[default])},
        verdict=DEFINITIONS,
        **_scale(setting, plan, recorded),
    )  # fmt: skip


def judging(setting: RunSettings) -> Outcome:
    """Evaluate frozen rules on new data sizes, architectures, optimizers, noise and seeds."""
    plan = cases(setting, "judging")
    return judge(setting, plan, runs(setting, plan))


STUDY = Study(
    name="overfitting_alarm",
    title="An overfitting alarm without validation data",
    reference="Our own; the rules follow Yuan et al. 2024 (arXiv:2502.07551), Hoelzl et al. 2025 (arXiv:2510.25480), "
    "Forouzesh and Thiran 2021 (arXiv:2107.06665), Mahsereci et al. 2017 (arXiv:1703.09580) and others.",
    parts=(
        Part("tuning", "Rules tuned on one pool of runs", tuning, "Ours: all rules are tuned with the same budget.",
             ours=True),
        Part("judging", "Rules judged on another pool of runs", judging,
             "Ours: the training samples alone say when test accuracy has peaked.", ours=True),
    ),
)  # fmt: skip
