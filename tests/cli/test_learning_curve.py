"""`gapscope learning-curve`: a grid, a function of one's own, going on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gapscope.cli import app

GRID = """
[base.data]
name = "digits"
train_size = 120

[base.network]
options = { n_hidden = 1, width = 8 }

[base.training]
epochs = 2

[axes]
"data.label_noise" = [0.0, 0.5]
"""

OWN = """
import torch


def recipe(x, y):
    return torch.nn.Linear(2, 2)


def mine():
    return recipe, (torch.randn(60, 2, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2)
"""


def test_a_row_a_recipe_and_a_second_call_reads_what_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(GRID)
    kept = ["--cache-dir", str(tmp_path / "kept")]
    rows = json.loads(CliRunner().invoke(app, ["learning-curve", str(path), "--json", *kept]).stdout)
    assert len(rows) == 2 and all(row["low"] <= row["score"] <= row["high"] for row in rows)
    answers = sorted((tmp_path / "kept").rglob("*.json"))
    times = [answer.stat().st_mtime_ns for answer in answers if answer.name != "twin.json"]
    shown = CliRunner().invoke(app, ["learning-curve", str(path), *kept], env={"COLUMNS": "120"})
    assert shown.exit_code == 0, shown.output
    assert "90 % interval" in shown.output and f"{rows[0]['score']:.3f}" in shown.output
    # the rows are named by what differs between them, and nothing is cut without a terminal
    assert [row["recipe"] for row in rows] == ["label_noise=0.0", "label_noise=0.5"]
    assert all(row["recipe"] in shown.output for row in rows) and "…" not in shown.output
    assert times == [answer.stat().st_mtime_ns for answer in answers if answer.name != "twin.json"]


def test_a_function_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_recipe.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    shown = CliRunner().invoke(app, ["learning-curve", "own_recipe:mine"])
    assert shown.exit_code == 0, shown.output
    assert "Predicted accuracy with all 60 samples" in shown.output
    assert (tmp_path / "gapscope-learning-curve" / "own_recipe.mine" / "twin.json").exists()


def test_a_function_that_returns_a_network_is_told_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_network.py").write_text(OWN.replace("return recipe,", "return recipe(0, 0),"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    done = CliRunner().invoke(app, ["learning-curve", "own_network:mine"])
    assert done.exit_code == 1 and "must return (train_fn, data)" in str(done.exception)


def test_an_unknown_data_set_is_an_error_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(GRID.replace('"digits"', '"digtis"'))
    for command in (["learning-curve"], ["forecast"], ["pool", "run"]):
        folder = [str(tmp_path / "pool")] if command[0] == "pool" else []
        done = CliRunner().invoke(app, [*command, str(tmp_path / "grid.toml"), *folder])
        assert done.exit_code == 1 and "Did you mean 'digits'" in str(done.exception)
        assert "to run" not in done.output and not (tmp_path / "pool").exists()


def test_an_interruption_shows_what_is_finished_and_trains_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gapscope.prediction import subset_runs

    train, calls = subset_runs.run_configuration, 0

    def stopped(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return train(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(subset_runs, "run_configuration", stopped)
    (tmp_path / "grid.toml").write_text(GRID)
    command = ["learning-curve", str(tmp_path / "grid.toml"), "--cache-dir", str(tmp_path / "runs"), "--json"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 130 and calls == 2
    (row,) = json.loads(result.stdout)
    assert row["is_interrupted"] and len(row["trainings"]) == 1
