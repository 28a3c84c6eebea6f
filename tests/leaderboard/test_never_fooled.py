"""Uninformative measures get no evidence and informative ones do, counted over simulated pools.

The full counts are results/protocols/never_fooled.json; `pytest -m slow tests/leaderboard/test_never_fooled.py` counts
them again. The smaller counts of every test run have fixed seeds.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gapscope.leaderboard.ranking import verdicts
from support.simulated_pools import GRIDS, simulated

STORED = Path(__file__).parents[2] / "results" / "protocols" / "never_fooled.json"
POOLS, NETWORKS = 100, 150
FOOLING = ("random", "copy", "leak")


def evidence(seed: int, kind: str, grid: str, n: int, n_permutations: int = 400) -> list[str]:
    """Return the measures of a kind that get evidence in one pool, evaluated together."""
    table, kinds = simulated(seed, n, grid)
    result = verdicts(
        table, measures=kinds[kind], n_permutations=n_permutations, n_bootstrap=20, seed=seed
    )
    return [
        name for name, row in result.items() if row.verdict == "evidence" and row.role != "random"
    ]


def counted(kind: str, grid: str, n: int, pools: int) -> dict[str, Any]:
    """In how many pools some measure of the kind got evidence, and which how often."""
    result = [evidence(seed, kind, grid, n) for seed in range(pools)]
    return {
        "kind": kind, "grid": grid, "networks": n, "pools": pools, "with_evidence": sum(map(bool, result)),
        "by_measure": dict(Counter(name for names in result for name in names)),
    }  # fmt: skip


def keeps_the_promise(row: Mapping[str, Any]) -> bool:
    """At most 5 of 100 pools fooled; a planted correlation found in 80 of 100."""
    if row["kind"] == "planted":
        return row["networks"] == NETWORKS and row["with_evidence"] >= 0.8 * row["pools"]
    return row["kind"] not in FOOLING or row["with_evidence"] <= 0.05 * row["pools"]


@pytest.mark.thorough
@pytest.mark.parametrize("grid", GRIDS)
def test_uninformative_measures_get_no_evidence(grid: str) -> None:
    result = [
        name
        for seed in range(2)
        for kind in FOOLING
        for name in evidence(seed, kind, grid, 96, 200)
    ]
    assert len(result) <= 1


@pytest.mark.thorough
@pytest.mark.parametrize("grid", GRIDS)
def test_informative_measures_get_evidence(grid: str) -> None:
    assert sum(bool(evidence(seed, "planted", grid, NETWORKS, 200)) for seed in range(4)) >= 2


def test_the_stored_counts_meet_the_promised_rates() -> None:
    rows = json.loads(STORED.read_text())["rows"]
    assert {(kind, "crossed") for kind in (*FOOLING, "planted")} <= {
        (row["kind"], row["grid"]) for row in rows
    }
    for row in rows:
        assert row["pools"] == POOLS and keeps_the_promise(row), row


@pytest.mark.slow
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("kind", [*FOOLING, "shadow", "planted"])
def test_full_counts_are_those_stored(kind: str, grid: str) -> None:
    rows = json.loads(STORED.read_text())["rows"]
    stored = next((row for row in rows if (row["kind"], row["grid"]) == (kind, grid)), None)
    result = counted(kind, grid, NETWORKS if kind == "planted" else 96, POOLS)
    assert keeps_the_promise(result), result
    if stored is not None:  # other processors round otherwise
        assert abs(result["with_evidence"] - stored["with_evidence"]) <= 2
