"""`gapscope list`: everything that can be named, with what it takes."""

from __future__ import annotations

import json
from typing import Any

import pytest

import gapscope as gs
from commands import gapscope


def rows(what: str) -> list[dict[str, Any]]:
    done = gapscope("list", what, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_all_measures_with_their_options() -> None:
    found = {row["name"]: row for row in rows("measures")}
    assert found.keys() == gs.list_measures().keys()
    trace = found["ntk_trace"]
    assert trace["needs"] == ["inputs"] and trace["cost"] == "many" and "method" in trace["options"]
    assert {name for name, row in found.items() if row["by_default"]} >= {"accuracy", "unit_sparsity"}


def test_all_penalties_with_their_settings() -> None:
    found = {row["name"]: row for row in rows("penalties")}
    assert found["loss_gradient"]["class"] == "LossGradientPenalty"
    assert found["loss_gradient"]["settings"] == ["strength", "wrt='parameters'", "every=1", "loss=None"]


def test_all_networks_with_their_options() -> None:
    found = {row["name"]: row["options"] for row in rows("networks")}
    assert found["lenet5"] == ["width_multiplier=1.0", "dropout=0.0", "batch_norm=False"]
    assert {"resnet18", "vgg16", "fully_connected"} <= found.keys()


@pytest.mark.parametrize("what", ["measures", "penalties", "networks"])
def test_a_table_names_every_one(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    done = gapscope("list", what)
    first = {line.split()[0] for line in done.stdout.splitlines() if line.strip()}
    assert {row["name"] for row in rows(what)} <= first
