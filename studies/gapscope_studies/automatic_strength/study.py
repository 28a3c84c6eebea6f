"""Penalties that set their own strength, against fixed strengths and other methods on corrupted labels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gapscope_studies.automatic_strength.judging import AUTOMATIC, NONE, judged, rows_of, settings
from gapscope_studies.kit.claims import Claim, claim, measured
from gapscope_studies.kit.statistics import Interval
from gapscope_studies.kit.study import Outcome, Part, RunSettings, Study

# name of a method -> in words
RIVALS = {
    NONE: "training without a penalty",
    "tuned once": "the strength that was tuned once, on one scenario",
    "dropout": "dropout",
    "early learning": "early-learning regularization",
    "generalized cross-entropy": "generalized cross-entropy",
    "nine tenths, best checkpoint": "nine tenths of the data and the best checkpoint on the rest",
}
NEAR = 0.015


def claims_of(numbers: Mapping[str, Any]) -> list[Claim]:
    """Differences of test accuracy over scenarios. Seeds of a family of data and network are the units."""
    differences = numbers["differences"][AUTOMATIC]
    # levels of noise share their samples and weights
    families = {row["scenario"]: row["seeds"] for row in numbers["scenarios"]}
    units = sum(families.values())
    common: dict[str, Any] = {
        "ours": True, "unit": f"seeds of {len(families)} families of data and network", "compared": (),
        "untrained": "accuracies at the end of training, whatever was learned",
    }  # fmt: skip

    def interval(name: str) -> Interval:
        found = differences[name]
        return Interval(found["value"], found["low"], found["high"], units)

    quantity = "test accuracy, difference"
    claims = [
        measured("ours", f"on four families, a penalty that sets its own strength ends better than {says}",
                 quantity, interval(name),
                 above=0.0, **common)
        for name, says in RIVALS.items() if name in differences
    ]  # fmt: skip
    # the best fixed strength is chosen by test accuracy: no method can know it
    near = measured("ours",
                    f"on four families it loses less than {100 * NEAR:g} points to the best fixed strength of each",
                    quantity, interval("best fixed"), above=-NEAR, **common)  # fmt: skip
    rows = numbers["scenarios"]
    by_family: dict[str, Any] = {**common, "unit": "families of data and network"}
    beyond = claim("ours", "on any family it ends better than the strength that was tuned once", quantity,
                   [row["automatic minus tuned once"] for row in rows], clusters=[row["scenario"] for row in rows],
                   above=0.0, **by_family)  # fmt: skip
    return [*claims, near, beyond]


def judging(setting: RunSettings) -> Outcome:
    """Train what is missing and compare."""
    wanted = settings("small" if setting.scale == "paper" else setting.scale)
    rows = rows_of(wanted, setting.work, setting.data_root)
    numbers = judged(rows, wanted["tuned"]) | {"trainings": len(rows), "runs": rows}
    worst = numbers["worst"]
    return Outcome(
        numbers=numbers, claims=claims_of(numbers), seeds=sorted({int(row["seed"]) for row in rows}),
        verdict=f"Worst scenario against its best fixed strength: {worst:+.3f}; collapsed: {numbers['collapsed']}."
        if math.isfinite(worst) else "",
    )  # fmt: skip


STUDY = Study(
    "automatic_strength", "Penalties that set their own strength", "gapscope's own.",
    (Part("judging", "Automatic strength on corrupted labels", judging, ours=True),),
)  # fmt: skip
