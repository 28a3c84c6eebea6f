"""The strength that sets itself, beside a strength that was tuned once and the best fixed one of each scenario."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pandas

from gapscope.pools.jobs import remembered
from gapscope_studies.automatic_strength.runs import AUTOMATIC, Run, trained
from gapscope_studies.kit.statistics import bootstrap

Row = Mapping[str, Any]


def settings(scale: str) -> dict[str, Any]:
    """The content of `<scale>.toml`."""
    return tomllib.loads(Path(__file__).with_name(f"{scale}.toml").read_text(encoding="utf-8"))


def runs_of(given: Mapping[str, Any]) -> list[Run]:
    """All trainings, those of one scenario, noise and seed together."""
    return [
        Run(
            scenario["name"], scenario["data"], scenario["network"], scenario["training"], given["samples"],
            given["test"], noise, seed, strength,
        )
        for scenario in given["scenarios"]
        for seed in given["seeds"]
        for noise in scenario["noises"]
        for strength in [AUTOMATIC, *given["strengths"]]
    ]  # fmt: skip


def rows_of(given: Mapping[str, Any], work: Path, root: str | None, *, train_missing: bool = True) -> list[Row]:
    """What every training gave, from the work folder where it is kept; complete groups alone."""
    jobs = {run.name: partial(trained, run, root) for run in runs_of(given)}
    if not train_missing:
        jobs = {name: job for name, job in jobs.items() if (work / f"{name}.json").exists()}
    rows = list(remembered(jobs, work, workers=1).values())
    table: Any = pandas.DataFrame(rows)
    whole = table.groupby(["scenario", "noise", "seed"])["strength"].transform("count") == len(given["strengths"]) + 1
    return [row for row, kept in zip(rows, whole, strict=True) if kept]


def _interval(differences: Sequence[float], clusters: Sequence[str]) -> dict[str, float]:
    values = numpy.array(differences)
    found = bootstrap(lambda rows: float(values[rows].mean()), len(values), list(clusters))
    return {"value": found.value, "low": found.low, "high": found.high}


def _scenario(name: str, noise: float, part: Any, tuned: float) -> dict[str, Any]:
    finals = part.groupby("strength")["final"].mean()
    fixed = finals.drop(AUTOMATIC)
    seconds = part.groupby("strength")["cpu_seconds"].mean()
    return {
        "scenario": name,
        "noise": noise,
        "seeds": int(part["seed"].nunique()),
        "none": float(finals["0.0"]),
        "tuned once": float(finals[str(tuned)]),
        "best fixed": float(fixed.max()),
        "best strength": float(fixed.idxmax()),
        "automatic": float(finals[AUTOMATIC]),
        "best epoch without": float(part[part["strength"] == "0.0"]["best"].mean()),
        "automatic minus best fixed": float(finals[AUTOMATIC] - fixed.max()),
        "cost against tuned once": float(seconds[AUTOMATIC] / seconds[str(tuned)]),
    }


def judged(rows: Sequence[Row], tuned: float) -> dict[str, Any]:
    """One row a scenario, and the mean differences with intervals over independent samples and weights.

    Args:
        rows: What every training gave.
        tuned: The strength that was tuned once, beforehand.

    Returns:
        "scenarios", "differences" (accuracy of the automatic strength less that of others, clusters are scenarios and
        seeds), "worst" (its smallest difference to the best fixed strength of a scenario) and "collapsed" (trainings
        with it that end below half of what none reaches, or did not finish).
    """
    table = pandas.DataFrame(list(rows))
    groups: Any = table.groupby(["scenario", "noise"], sort=False)
    scenarios = [_scenario(str(key[0]), float(key[1]), part, tuned) for key, part in groups]
    wide: Any = table.pivot_table(index=["scenario", "noise", "seed"], columns="strength", values="final", sort=False)
    best = {(row["scenario"], row["noise"]): str(row["best strength"]) for row in scenarios}
    clusters = [f"{scenario} {seed}" for scenario, _, seed in wide.index]
    automatic = wide[AUTOMATIC].to_numpy()
    rivals = {
        "tuned once": wide[str(tuned)].to_numpy(),
        "none": wide["0.0"].to_numpy(),
        "best fixed": numpy.array([wide.loc[index, best[index[:2]]] for index in wide.index]),
    }
    ended = table[(table["strength"] == AUTOMATIC) & (table["status"] != "finished")]
    return {
        "scenarios": scenarios,
        "differences": {name: _interval((automatic - other).tolist(), clusters) for name, other in rivals.items()},
        "worst": min(row["automatic minus best fixed"] for row in scenarios),
        "collapsed": int((automatic < 0.5 * rivals["none"]).sum()) + len(ended),
    }
