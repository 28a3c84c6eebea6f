"""An offline run of Weights & Biases."""

# ruff: noqa: E402
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

wandb = pytest.importorskip("wandb")

from gapscope.base.errors import InvalidInput
from gapscope.integrations.wandb import WandbSink

pytestmark = [pytest.mark.filterwarnings("ignore")]


def test_numbers_are_logged_over_their_own_axis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = wandb.init(project="test", dir=str(tmp_path))
    try:
        sink = WandbSink()
        run.log({"loss": 1.0}, step=10)
        sink(3, {"ntk_trace": 2.5})
        sink(6, {"ntk_trace": 4.5})
        summary = dict(run.summary)
    finally:
        run.finish()
    assert (summary["gapscope/epoch"], summary["gapscope/ntk_trace"], summary["loss"]) == (6, 4.5, 1.0)
    assert list(tmp_path.rglob("*.wandb"))


def test_no_run_is_said() -> None:
    with pytest.raises(InvalidInput, match=r"needs a run; there is no current one\. Call wandb\.init\(\)"):
        WandbSink()(1, {})


def test_a_given_run_is_used() -> None:
    logged: list[Any] = []

    class Run:
        def define_metric(self, name: str, step_metric: str) -> None:
            logged.append((name, step_metric))

        def log(self, numbers: dict[str, float]) -> None:
            logged.append(numbers)

    sink = WandbSink(Run())
    sink(1, {"loss": 2.0})
    sink(2, {"loss": 1.0})
    assert logged == [
        ("gapscope/*", "gapscope/epoch"),
        {"gapscope/epoch": 1, "gapscope/loss": 2.0},
        {"gapscope/epoch": 2, "gapscope/loss": 1.0},
    ]
