"""Penalties that set their own strength, next to fixed strengths and other ways of dealing with wrong labels."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas

from gapscope.pools.jobs import run_cached
from gapscope_studies.automatic_strength.runs import Method, Run, trained
from gapscope_studies.kit.claims import Claim, claim, measured
from gapscope_studies.kit.statistics import Interval, bootstrap
from gapscope_studies.kit.study import Outcome, Part, RunSettings, Study

Row = Mapping[str, Any]
NONE, AUTOMATIC, FIXED = "none", "gradient similarity, automatic", "gradient similarity, fixed"
# name of a method -> in words
OTHERS = {
    NONE: "training without a penalty",
    "tuned once": "the strength that was tuned once, on one scenario",
    "dropout": "dropout",
    "early learning": "early-learning regularization",
    "generalized cross-entropy": "generalized cross-entropy",
    "nine tenths, best checkpoint": "nine tenths of the data and the best checkpoint on the rest",
}
NEAR = 0.015


def fixed(strength: float) -> str:
    """Return what a fixed strength is called."""
    return f"{FIXED} {strength:g}"


def runs_of(given: Mapping[str, Any]) -> list[Run]:
    """All training runs, seed by seed, first seeds of all scenarios early. Then those of the `last` ways.

    The ways of a scenario are none, its fixed strengths and the one tuned once, and those of the settings.
    """
    ways = {}
    for scenario in given["scenarios"]:
        strengths = sorted({*scenario["strengths"], given["tuned"]})
        penalties = {fixed(s): {"name": "gradient_similarity", "options": {"strength": s}} for s in strengths}
        others = [Method(**way) for way in given["ways"] if way["name"] not in scenario.get("without", ())]
        ways[scenario["name"]] = [Method(NONE), *(Method(*each) for each in penalties.items()), *others]
    return [
        Run(scenario, given["samples"], given["test"], noise, seed, way)
        for late in (False, True)
        for seed in given["seeds"]
        for scenario in given["scenarios"]
        for noise in scenario["noises"]
        for way in ways[scenario["name"]]
        if seed in scenario.get("seeds", given["seeds"]) and late == (way.name in given["last"])
    ]


def rows_of(given: Mapping[str, Any], work: Path, root: str | None) -> list[Row]:
    """Return the stored rows of all training runs."""
    jobs = {run.name: partial(trained, run, root) for run in runs_of(given)}
    return list(run_cached(jobs, work, workers=1).values())


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


def _difference(first: Any, second: Any) -> dict[str, float]:
    """Mean difference of two columns where both are known. Noises of a scenario and seed share samples and weights."""
    differences = (first - second).dropna()
    clusters = [f"{scenario} {seed}" for scenario, _, seed in differences.index]
    values = differences.to_numpy(dtype=float)
    result = bootstrap(lambda rows: float(values[rows].mean()), len(values), clusters)
    return {"value": result.value, "low": result.low, "high": result.high, "trainings": len(values)}


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
    wide: Any = table.pivot_table(index=["scenario", "noise", "seed"], columns="way", values="final", sort=False)
    best = {(row["scenario"], row["noise"]): row["best fixed way"] for row in scenarios}
    oracle = pandas.Series([wide.loc[index, best[index[:2]]] for index in wide.index], index=wide.index)
    differences: dict[str, dict[str, Any]] = {}
    for way in wide.columns[wide.columns.str.endswith("automatic")]:
        together = [other for other in wide.columns if other != way and wide[[way, other]].notna().all(axis=1).any()]
        differences[way] = {other: _difference(wide[way], wide[other]) for other in together}
    differences[AUTOMATIC]["best fixed"] = _difference(wide[AUTOMATIC], oracle)
    differences[AUTOMATIC]["tuned once"] = differences[AUTOMATIC][fixed(tuned)]
    ended = table[(table["way"] == AUTOMATIC) & (table["status"] != "finished")]
    return {
        "scenarios": scenarios,
        "differences": differences,
        "worst": min(row["automatic minus best fixed"] for row in scenarios),
        "collapsed": int((wide[AUTOMATIC] < 0.5 * wide[NONE]).sum()) + len(ended),
    }


def claims_of(numbers: Mapping[str, Any]) -> list[Claim]:
    """Differences of test accuracy over scenarios. Seeds of a family of data and network are the units."""
    differences, rows = numbers["differences"][AUTOMATIC], numbers["scenarios"]
    # levels of noise share their samples and weights
    families = {row["scenario"]: row["seeds"] for row in rows}
    common: dict[str, Any] = {
        "ours": True, "unit": f"seeds of {len(families)} families of data and network", "compared": (),
        "untrained": "accuracies at the end of training, whatever was learned",
    }  # fmt: skip

    def against(name: str, says: str, above: float) -> Claim:
        result = differences[name]
        interval = Interval(result["value"], result["low"], result["high"], sum(families.values()))
        return measured("ours", f"on four families{says}", "test accuracy, difference", interval, above=above, **common)

    # the best fixed strength is chosen by test accuracy: no method can know it
    near = f" it loses less than {100 * NEAR:g} points to the best fixed strength of each"
    beyond = claim("ours", "on any family it ends better than the strength that was tuned once",
                   "test accuracy, difference", [row["automatic minus tuned once"] for row in rows],
                   clusters=[row["scenario"] for row in rows], above=0.0,
                   **{**common, "unit": "families of data and network"})  # fmt: skip
    return [
        *(against(name, f", a penalty that sets its own strength ends better than {says}", 0.0)
          for name, says in OTHERS.items() if name in differences),
        against("best fixed", near, -NEAR),
        beyond,
    ]  # fmt: skip


def judging(setting: RunSettings) -> Outcome:
    """Train what is missing and compare."""
    scale = "smoke" if setting.scale == "smoke" else "small"
    given = tomllib.loads(Path(__file__).with_name(f"{scale}.toml").read_text(encoding="utf-8"))
    rows = rows_of(given, setting.work, setting.data_root)
    numbers = judged(rows, given["tuned"]) | {"trainings": len(rows), "runs": rows}
    return Outcome(
        numbers=numbers, claims=claims_of(numbers), seeds=sorted({int(row["seed"]) for row in rows}),
        verdict=f"Worst scenario against its best fixed strength: {numbers['worst']:+.3f}; "
                f"collapsed: {numbers['collapsed']}.",
    )  # fmt: skip


STUDY = Study(
    "automatic_strength", "Penalties that set their own strength", "gapscope's own.",
    (Part("judging", "Automatic strength on corrupted labels", judging, ours=True),),
)  # fmt: skip
