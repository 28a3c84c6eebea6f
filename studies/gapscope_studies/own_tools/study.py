"""Rows about labels, learning curves, the memorization monitor, leaderboard protocols and checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gapscope.base.files import read_json
from gapscope_studies.checks.summary import BAR_FALSE_ALARMS, BAR_HITS, wilson
from gapscope_studies.kit.claims import HELD, NOT_HELD, Claim, claim, measured
from gapscope_studies.kit.statistics import Interval, mean
from gapscope_studies.kit.study import Outcome, Part, RunSettings, Study

ROOT = Path(__file__).parents[3]
LEVEL = 0.9
SCORE = "average_precision"


def _own(what: str) -> dict[str, Any]:
    """Fields of every row here: ours, and what stands behind it in place of compared networks."""
    return {"ours": True, "compared": (), "untrained": what}


def _share(source: str, says: str, quantity: str, count: int, total: int, unit: str, what: str, **bounds: Any) -> Claim:
    """A claim about a share of independent cases, with Wilson's interval."""
    value, low, high = wilson(count, total) or (math.nan, -math.inf, math.inf)
    return measured(source, says, quantity, Interval(value, low, high, total), unit=unit, **_own(what), **bounds)


# --- labels


def _better(content: Mapping[str, Any], own: str, other: str, says: str, units: int) -> Claim:
    row = next(row for row in content["differences"] if (row["method"], row["minus"]) == (own, other))
    value, low, high = row[SCORE]
    return measured("labels", says, f"average precision of {own} minus {other}", Interval(value, low, high, units),
                    above=0.0, unit="data sets", **_own("rankings of labels, whatever was learned"))  # fmt: skip


def _coverages(content: Mapping[str, Any], method: str) -> list[float]:
    """Share of intervals that hold the true rate, by data set."""
    rows = [row for row in content["coverage"] if row["method"] == method and row["data"] != "all"]
    return [row["covered"] / row["answered"] for row in rows if row["answered"]]


def label_claims(stored: Path) -> list[Claim]:
    """Rankings of wrong labels against rivals, coverage of rates, wrong regression targets."""
    ranking, own, hard, targets = (
        read_json(stored / "labels" / f"{name}.json") for name in ("ranking", "own", "hard_clean", "targets")
    )
    units = len({row["data"] for row in ranking["by_data"]})
    what = _own("rates of wrong labels, whatever was learned")
    claims = [
        _better(ranking, first, second, says, units)
        for first, second, says in (
            ("no network", "cleanlab, five folds", "without a network wrong labels rank better than by five folds"),
            ("no network", "cleanlab, RBF", "without a network they rank better than by an RBF support vector machine"),
            ("untrained network", "no network", "an untrained network ranks them better than no network"),
            ("one training", "cleanlab, five folds", "one training ranks them better than five folds"),
            ("one training", "cleanlab, one training's budget", "one training ranks them better than equal cost"),
            ("one training", "area under the margin", "one training ranks them better than the area under the margin"),
            ("one training", "no network", "one training ranks them better than no network"),
        )
    ]
    claims += [
        claim("labels", f"the 90 % interval of the rate of wrong labels holds it in 9 of 10 ({method}, {name})",
              "share of intervals", _coverages(content, method), above=LEVEL, unit="data sets", **what)
        for name, content in (("first draws", ranking), ("new draws", own)) for method in ("no network", "one training")
    ]  # fmt: skip
    shares = [(row["abstained"] + row["covered"]) / row["draws"] for row in hard["hard"]]
    tables = len({row["by"] for row in targets["rows"]} - {"gross", "swapped", "unit"})
    return [
        *claims,
        claim("labels", "on hard, clean data the interval holds 0 or is withheld in 9 of 10", "share of draws", shares,
              above=LEVEL, unit="kinds of data", **what),
        *(_better(targets, "gapscope", other, f"wrong regression targets rank better than by {other}", tables)
          for other in ("cleanlab, random forest", "cleanlab, linear regression")),
    ]  # fmt: skip


# --- learning curves, the memorization monitor


def curve_claims(benchmarks: Path) -> list[Claim]:
    """Extrapolated scores of networks against a hold-out of a tenth, and coverage."""
    networks = read_json(benchmarks / "results" / "twins.json")["networks"]
    what = _own("estimates of a score, whatever was learned")

    def error(row: Mapping[str, Any], design: str) -> float:
        return abs(float(row[f"{design}.score"]) - float(row["truth"]))

    claims = [
        claim("learning curve", f"{says} errs less than a hold-out of a tenth", "absolute error, difference",
              [error(row, design) - error(row, "hold-out") for row in networks], below=0.0, unit="networks", **what)
        for design, says in (
            ("half and quarter", "the default design, at 0.75 trainings,"),
            ("five folds and quarter", "the design of five folds, at 4.25 trainings,"),
        )
    ]  # fmt: skip
    design = "half and quarter"
    inside = sum(row[f"{design}.low"] <= row["truth"] <= row[f"{design}.high"] for row in networks)
    return [
        *claims,
        _share("learning curve", "the default's 90 % interval holds the score in 9 of 10", "share of networks", inside,
               len(networks), "networks", what["untrained"], above=LEVEL),
    ]  # fmt: skip


def monitor_claims(benchmarks: Path) -> list[Claim]:
    """Flags of memorizing fine-tuning runs, and false ones where nothing could be known."""
    summary = read_json(benchmarks / "results" / "fine_tuning.json")["summary"]
    what = "flags raised while models are fine-tuned"
    claims = []
    for model, row in summary.items():
        runs, nulls = row["memorising runs"], row["null runs"]
        for says, name, total, bounds in (
            (f"{model}: three of four memorizing runs are flagged", "flagged", runs, {"above": 0.75}),
            (f"{model}: half of them in time", "flagged in time", runs, {"above": 0.5}),
            (f"{model}: where nothing is memorized, fewer than one run in ten is flagged", "false flags", nulls,
             {"below": 0.1}),
        ):  # fmt: skip
            claims.append(_share("monitor", says, "share of runs", row[name], total, "runs", what, **bounds))
    return claims


# --- leaderboard protocols, checks


def protocol_claims(stored: Path) -> list[Claim]:
    """Return how often measures that know nothing get the verdict "evidence", and one that does."""
    rows = read_json(stored / "protocols" / "never_fooled.json")["rows"]
    kinds = {
        "random": ("random numbers rarely get evidence", {"below": 0.05}),
        "leak": ("functions of the hyperparameters rarely get evidence", {"below": 0.05}),
        "copy": ("noisy copies of a hyperparameter rarely get evidence", {"below": 0.05}),
        "shadow": ("functions of the hyperparameters with little noise rarely get evidence", {"below": 0.05}),
        "planted": ("a planted relation gets evidence in four of five pools", {"above": 0.8}),
    }
    claims = []
    for kind, (says, bounds) in kinds.items():
        there = [row for row in rows if row["kind"] == kind]
        count, total = (sum(row[name] for row in there) for name in ("with_evidence", "pools"))
        claims.append(_share("protocol", says, "share of pools with evidence", count, total, "pools",
                             "simulated readings", **bounds))  # fmt: skip
    return claims


def _wider(shares: Sequence[float], cases: Sequence[float] | None) -> Interval:
    """Mean over data sets with Student's interval, as wide as Wilson's over cases: where all agree it has no width."""
    found = mean(shares)
    _, low, high = cases or (0.0, math.inf, -math.inf)
    return Interval(found.value, max(min(found.low, low), 0.0), min(max(found.high, high), 1.0), found.units)


def check_claims(stored: Path) -> list[Claim]:
    """Faults that every check finds, and its false alarms. Data sets are the units."""
    claims = []
    for row in read_json(stored / "checks" / "planted_faults.json")["codes"]:
        for says, name, bounds in (
            ("finds four of five planted faults", "hits", {"above": BAR_HITS}),
            ("raises a false alarm in at most one clean case of ten", "false alarms of answered",
             {"below": BAR_FALSE_ALARMS}),
        ):  # fmt: skip
            values = [data[name][0] for data in row["by data"].values() if data[name] is not None]
            claims.append(measured("check", f"{row['code']} {says}", "share of cases", _wider(values, row[name]),
                                   unit="data sets", **bounds, **_own("faults planted by us")))  # fmt: skip
    return claims


def _part(setting: RunSettings, *, read: Callable[[Path], Sequence[Claim]], folder: str) -> Outcome:
    claims = read(ROOT / folder)
    decided = sum(claim.outcome in (HELD, NOT_HELD) for claim in claims)
    return Outcome(numbers={"rows": len(claims), "decided": decided}, claims=claims)


STUDY = Study(
    name="own_tools",
    title="gapscope's own tools",
    reference="gapscope's own: rows read from stored results; how these were made stands on the pages of evidence.",
    parts=tuple(
        Part(name, title, partial(_part, read=read, folder=folder), ours=True)
        for name, title, read, folder in (
            ("labels", "Which labels are wrong", label_claims, "results"),
            ("learning_curve", "Would more data help", curve_claims, "benchmarks"),
            ("monitor", "Memorization while fine-tuning", monitor_claims, "benchmarks"),
            ("protocols", "Verdicts on measures", protocol_claims, "results"),
            ("checks", "Planted faults", check_claims, "results"),
        )
    ),
)
