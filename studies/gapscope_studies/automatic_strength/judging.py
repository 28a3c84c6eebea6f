"""Strengths that set themselves, beside fixed ones and beside other ways of dealing with wrong labels."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pandas

from gapscope.pools.jobs import run_cached
from gapscope_studies.automatic_strength.runs import Method, Run, trained
from gapscope_studies.kit.statistics import bootstrap

Row = Mapping[str, Any]
NONE, AUTOMATIC, FIXED = "none", "gradient similarity, automatic", "gradient similarity, fixed"
KEY = ["scenario", "noise", "seed"]


def settings(scale: str) -> dict[str, Any]:
    """The content of `<scale>.toml`."""
    return tomllib.loads(Path(__file__).with_name(f"{scale}.toml").read_text(encoding="utf-8"))


def fixed(strength: float) -> str:
    """Return what a fixed strength is called."""
    return f"{FIXED} {strength:g}"


def ways_of(given: Mapping[str, Any], scenario: Mapping[str, Any]) -> list[Method]:
    """All ways of a scenario: none, its fixed strengths and the one tuned once, and those of the settings."""
    strengths = sorted({*scenario["strengths"], given["tuned"]})
    penalties = [{"name": "gradient_similarity", "options": {"strength": strength}} for strength in strengths]
    others = [Method(**way) for way in given["ways"] if way["name"] not in scenario.get("without", ())]
    return [Method(NONE), *(Method(fixed(s), penalty=p) for s, p in zip(strengths, penalties, strict=True)), *others]


def runs_of(given: Mapping[str, Any]) -> list[Run]:
    """All training runs, seed by seed, first seeds of all scenarios early. Then those of the `last` ways."""
    return [
        Run(
            scenario["name"], scenario["data"], scenario["network"], scenario["training"], given["samples"],
            given["test"], noise, seed, way,
        )
        for late in (False, True)
        for seed in given["seeds"]
        for scenario in given["scenarios"]
        for noise in scenario["noises"]
        for way in ways_of(given, scenario)
        if seed in scenario.get("seeds", given["seeds"]) and late == (way.name in given["last"])
    ]  # fmt: skip


def rows_of(given: Mapping[str, Any], work: Path, root: str | None, *, train_missing: bool = True) -> list[Row]:
    """Return the stored rows of all training runs, of groups that lack nothing but `last` ways."""
    runs = runs_of(given)
    if not train_missing:
        runs = [run for run in runs if (work / f"{run.name}.json").exists()]
    found = run_cached({run.name: partial(trained, run, root) for run in runs}, work, workers=1)
    rows = list(found.values())
    wanted = {
        scenario["name"]: sum(way.name not in given["last"] for way in ways_of(given, scenario))
        for scenario in given["scenarios"]
    }
    table: Any = pandas.DataFrame(rows)
    table["needed"] = ~table["way"].isin(given["last"])
    whole = table.groupby(KEY)["needed"].transform("sum") == table["scenario"].map(wanted)
    return [row for row, kept in zip(rows, whole, strict=True) if kept]


def _interval(differences: Any, clusters: Sequence[str]) -> dict[str, float]:
    values = numpy.asarray(differences, dtype=float)
    found = bootstrap(lambda rows: float(values[rows].mean()), len(values), list(clusters))
    return {"value": found.value, "low": found.low, "high": found.high, "trainings": len(values)}


def _scenario(name: str, noise: float, part: Any, tuned: float) -> dict[str, Any]:
    finals = part.groupby("way", sort=False)["final"].mean()
    strengths = finals[[way for way in finals.index if way == NONE or way.startswith(FIXED)]]
    seconds = part.groupby("way")["cpu_seconds"].mean()
    return {
        "scenario": name,
        "noise": noise,
        "seeds": int(part["seed"].nunique()),
        "ways": {str(way): float(value) for way, value in finals.items()},
        "best fixed": float(strengths.max()),
        "best fixed way": str(strengths.idxmax()),
        "best epoch without": float(part[part["way"] == NONE]["best"].mean()),
        "automatic minus best fixed": float(finals[AUTOMATIC] - strengths.max()),
        "automatic minus tuned once": float(finals[AUTOMATIC] - finals[fixed(tuned)]),
        "cost against none": float(seconds[AUTOMATIC] / seconds[NONE]),
        "cost against tuned once": float(seconds[AUTOMATIC] / seconds[fixed(tuned)]),
    }


def _differences(wide: Any, automatic: str) -> dict[str, dict[str, float]]:
    """Accuracy of one automatic strength less that of every other way, where both were trained."""
    found = {}
    for rival in wide.columns:
        both = wide[[automatic, rival]].dropna() if rival != automatic else wide.iloc[:0]
        if len(both):
            clusters = [f"{scenario} {seed}" for scenario, _, seed in both.index]
            found[str(rival)] = _interval(both[automatic] - both[rival], clusters)
    return found


def judged(rows: Sequence[Row], tuned: float) -> dict[str, Any]:
    """One row a scenario and noise, and mean differences with intervals over independent samples and weights.

    Args:
        rows: What every training gave.
        tuned: The strength of the gradient similarity that was tuned once, beforehand.

    Returns:
        "scenarios", "differences" (test accuracy of each automatic strength less that of every other way in the same
        scenarios, and less that of the best fixed strength of each; clusters are scenarios and seeds), "worst" (the
        smallest mean difference to the best fixed strength in a scenario) and "collapsed" (training runs with the
        automatic strength that end below half of what none reaches, or did not finish).
    """
    table = pandas.DataFrame(list(rows))
    groups: Any = table.groupby(["scenario", "noise"], sort=False)
    scenarios = [_scenario(str(key[0]), float(key[1]), part, tuned) for key, part in groups]
    wide: Any = table.pivot_table(index=KEY, columns="way", values="final", sort=False)
    best = {(row["scenario"], row["noise"]): row["best fixed way"] for row in scenarios}
    oracle = pandas.Series([wide.loc[index, best[index[:2]]] for index in wide.index], index=wide.index)
    automatics = [way for way in wide.columns if way.endswith("automatic")]
    differences = {way: _differences(wide, way) for way in automatics}
    clusters = [f"{scenario} {seed}" for scenario, _, seed in wide.index]
    differences[AUTOMATIC]["best fixed"] = _interval(wide[AUTOMATIC] - oracle, clusters)
    differences[AUTOMATIC]["tuned once"] = differences[AUTOMATIC][fixed(tuned)]
    ended = table[(table["way"] == AUTOMATIC) & (table["status"] != "finished")]
    return {
        "scenarios": scenarios,
        "differences": differences,
        "worst": min(row["automatic minus best fixed"] for row in scenarios),
        "collapsed": int((wide[AUTOMATIC] < 0.5 * wide[NONE]).sum()) + len(ended),
    }
