"""Rows on labels, learning curves, the memorization monitor, leaderboards and checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gapscope.base.files import read_json
from gapscope_studies.checks.summary import BAR_FALSE_ALARMS, BAR_HITS, wilson
from gapscope_studies.kit.claims import HELD, NOT_HELD, Claim, claim, estimate
from gapscope_studies.kit.statistics import Interval, from_list, mean
from gapscope_studies.kit.study import Outcome, Part, RunSettings, Study

ROOT = Path(__file__).parents[3]
LEVEL = 0.9
RANKINGS = (
    (
        "no network",
        "cleanlab, five folds",
        "without a network wrong labels rank better than by five folds",
    ),
    (
        "no network",
        "cleanlab, RBF",
        "without a network they rank better than by an RBF support vector machine",
    ),
    ("untrained network", "no network", "an untrained network ranks them better than no network"),
    ("one training", "cleanlab, five folds", "one training ranks them better than five folds"),
    (
        "one training",
        "cleanlab, one training's budget",
        "one training ranks them better than equal cost",
    ),
    (
        "one training",
        "area under the margin",
        "one training ranks them better than the area under the margin",
    ),
    ("one training", "no network", "one training ranks them better than no network"),
)
# kind of reading -> claim about the fraction of pools with the verdict "evidence"
PROTOCOLS = {
    "random": ("random numbers rarely get evidence", {"below": 0.05}),
    "leak": ("functions of the hyperparameters rarely get evidence", {"below": 0.05}),
    "copy": ("noisy copies of a hyperparameter rarely get evidence", {"below": 0.05}),
    "shadow": (
        "functions of the hyperparameters with little noise rarely get evidence",
        {"below": 0.05},
    ),
    "planted": ("a planted relation gets evidence in four of five pools", {"above": 0.8}),
}


def _fraction_claim(
    source: str, statement: str, quantity: str, count: int, total: int, **options: Any
) -> Claim:
    """Return a claim about a fraction of independent cases, with Wilson's interval."""
    ends = wilson(count, total) or (math.nan, -math.inf, math.inf)
    return estimate(source, statement, quantity, from_list(ends, total), compared=(), **options)


def _better(
    content: Mapping[str, Any], method: str, other: str, statement: str, units: int
) -> Claim:
    row = next(
        row for row in content["differences"] if (row["method"], row["minus"]) == (method, other)
    )
    return estimate("labels", statement, f"average precision of {method} minus {other}",
                    from_list(row["average_precision"], units), above=0.0, unit="data sets", compared=(),
                    untrained="rankings of labels, whatever was learned")  # fmt: skip


def label_claims(stored: Path) -> list[Claim]:
    """Return claims on label rankings, coverage of noise rates, and wrong regression targets."""
    ranking, own, hard, targets = (
        read_json(stored / "labels" / f"{name}.json")
        for name in ("ranking", "own", "hard_clean", "targets")
    )
    n_sets = len({row["data"] for row in ranking["by_data"]})
    n_tables = len({row["by"] for row in targets["rows"]} - {"gross", "swapped", "unit"})
    claims = [
        _better(ranking, first, second, statement, n_sets) for first, second, statement in RANKINGS
    ]
    for name, content in (("first draws", ranking), ("new draws", own)):
        for method in ("no network", "one training"):
            rows = [
                row
                for row in content["coverage"]
                if row["method"] == method and row["data"] != "all"
            ]
            shares = [row["covered"] / row["answered"] for row in rows if row["answered"]]
            statement = f"the 90 % interval of the rate of wrong labels holds it in 9 of 10 ({method}, {name})"
            claims.append(claim("labels", statement, "share of intervals", shares, above=LEVEL, unit="data sets",
                                compared=()))  # fmt: skip
    shares = [(row["abstained"] + row["covered"]) / row["draws"] for row in hard["hard"]]
    return [
        *claims,
        claim("labels", "on hard, clean data the interval holds 0 or is withheld in 9 of 10", "share of draws", shares,
              above=LEVEL, unit="kinds of data", compared=()),
        *(_better(targets, "gapscope", other, f"wrong regression targets rank better than by {other}", n_tables)
          for other in ("cleanlab, random forest", "cleanlab, linear regression")),
    ]  # fmt: skip


def curve_claims(benchmarks: Path) -> list[Claim]:
    """Return claims on extrapolated scores against a hold-out of a tenth, and on coverage."""
    networks = read_json(benchmarks / "results" / "twins.json")["networks"]
    claims = []
    for design, statement in (
        ("half and quarter", "the default design, at 0.75 trainings,"),
        ("five folds and quarter", "the design of five folds, at 4.25 trainings,"),
    ):
        differences = [abs(row[f"{design}.score"] - row["truth"]) - abs(row["hold-out.score"] - row["truth"])
                       for row in networks]  # fmt: skip
        claims.append(claim("learning curve", f"{statement} errs less than a hold-out of a tenth",
                            "absolute error, difference", differences, below=0.0, unit="networks",
                            compared=()))  # fmt: skip
    inside = sum(
        row["half and quarter.low"] <= row["truth"] <= row["half and quarter.high"]
        for row in networks
    )
    statement = "the default's 90 % interval holds the score in 9 of 10"
    covered = _fraction_claim("learning curve", statement, "share of networks", inside, len(networks), unit="networks",
                              above=LEVEL)  # fmt: skip
    return [*claims, covered]


def monitor_claims(benchmarks: Path) -> list[Claim]:
    """Return claims on flags of memorizing fine-tuning runs, and on false flags."""
    claims = []
    for model, row in read_json(benchmarks / "results" / "fine_tuning.json")["summary"].items():
        runs, nulls = row["memorising runs"], row["null runs"]
        for statement, name, total, bounds in (
            ("three of four memorizing runs are flagged", "flagged", runs, {"above": 0.75}),
            ("half of them in time", "flagged in time", runs, {"above": 0.5}),
            (
                "where nothing is memorized, fewer than one run in ten is flagged",
                "false flags",
                nulls,
                {"below": 0.1},
            ),
        ):
            claims.append(_fraction_claim("monitor", f"{model}: {statement}", "share of runs", row[name], total,
                                          unit="runs", **bounds))  # fmt: skip
    return claims


def protocol_claims(stored: Path) -> list[Claim]:
    """Return claims on fractions of pools with the verdict "evidence", by kind of measure."""
    rows = read_json(stored / "protocols" / "never_fooled.json")["rows"]
    claims = []
    for kind, (statement, bounds) in PROTOCOLS.items():
        counts = (
            sum(row[name] for row in rows if row["kind"] == kind)
            for name in ("with_evidence", "pools")
        )
        claims.append(
            _fraction_claim(
                "protocol",
                statement,
                "share of pools with evidence",
                *counts,
                unit="pools",
                **bounds,
            )
        )
    return claims


def _wider(shares: Sequence[float], cases: Sequence[float] | None) -> Interval:
    """Return the mean over data sets, with the wider of Student's and Wilson's intervals."""
    result = mean(shares)  # without width if all data sets agree
    _, low, high = cases or (0.0, math.inf, -math.inf)
    return Interval(
        result.value, min(result.low, low), max(result.high, high), result.units
    ).within(0.0, 1.0)


def check_claims(stored: Path) -> list[Claim]:
    """Return claims on the faults that every check finds, and on its false alarms."""
    claims = []
    for row in read_json(stored / "checks" / "planted_faults.json")["codes"]:
        for statement, name, bounds in (
            ("finds four of five planted faults", "hits", {"above": BAR_HITS}),
            ("raises a false alarm in at most one clean case of ten", "false alarms of answered",
             {"below": BAR_FALSE_ALARMS}),
        ):  # fmt: skip
            values = [data[name][0] for data in row["by data"].values() if data[name] is not None]
            claims.append(estimate("check", f"{row['code']} {statement}", "share of cases", _wider(values, row[name]),
                                   unit="data sets", compared=(), **bounds))  # fmt: skip
    return claims


def _run(
    setting: RunSettings, *, read: Callable[[Path], Sequence[Claim]], folder: str, evidence: str
) -> Outcome:
    """Return the outcome of one part, all ours. `evidence` replaces compared networks."""
    claims = [
        replace(each, ours=True, untrained=each.untrained or evidence)
        for each in read(ROOT / folder)
    ]
    decided = sum(each.outcome in (HELD, NOT_HELD) for each in claims)
    return Outcome(numbers={"rows": len(claims), "decided": decided}, claims=claims)


PARTS = (
    ("labels", "Which labels are wrong", label_claims, "results", "rates of wrong labels, whatever was learned"),
    ("learning_curve", "Would more data help", curve_claims, "benchmarks",
     "estimates of a score, whatever was learned"),
    ("monitor", "Memorization while fine-tuning", monitor_claims, "benchmarks",
     "flags raised while models are fine-tuned"),
    ("protocols", "Verdicts on measures", protocol_claims, "results", "simulated readings"),
    ("checks", "Planted faults", check_claims, "results", "faults planted by us"),
)  # fmt: skip
STUDY = Study(
    name="own_tools",
    title="gapscope's own tools",
    reference="gapscope's own: rows read from stored results; how these were made stands on the pages of evidence.",
    parts=tuple(
        Part(name, title, partial(_run, read=read, folder=folder, evidence=evidence), ours=True)
        for name, title, read, folder, evidence in PARTS
    ),
)
