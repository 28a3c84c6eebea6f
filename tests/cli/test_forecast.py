"""`gapscope forecast` on a small grid and on a CSV file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gapscope.cli import app

GRID = """
[base.data]
name = "digits"
train_size = 60

[base.network]
options = { n_hidden = 1, width = 8 }

[axes]
"data.label_noise" = [0.0, 0.5]
"""


def test_grid_rows_are_named_by_what_varies(tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(GRID)
    shown = CliRunner().invoke(app, ["forecast", str(path)], env={"COLUMNS": "120"})
    assert shown.exit_code == 0, shown.output
    assert "label_noise=0.5" in shown.output and "twice the data" in shown.output
    rows = json.loads(CliRunner().invoke(app, ["forecast", str(path), "--json", "--samples", "40"]).stdout)
    assert rows[0]["score"] > rows[1]["score"] and rows[0]["curve"][-2]["samples"] == 40


def test_csv_with_string_labels(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("a,b,label\n" + "".join(f"{i},{i % 5},{'high' if i > 20 else 'low'}\n" for i in range(40)))
    shown = CliRunner().invoke(app, ["forecast", str(path)])
    assert shown.exit_code == 0 and "RBF ridge" in shown.output and "0 = 'high'" in shown.output


def test_unknown_data_sets_and_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_text('[base.data]\nname = "digitz"\n')
    result = CliRunner().invoke(app, ["forecast", str(path)])
    assert result.exit_code and "digits" in str(result.exception)
    result = CliRunner().invoke(app, ["forecast", str(tmp_path / "none.csv")])
    assert result.exit_code and "no such file" in str(result.exception)


def test_an_interruption_shows_finished_rows_and_ends_the_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gapscope.prediction.loo_rows.kernel_leave_one_out", stop)
    (tmp_path / "grid.toml").write_text(GRID)
    result = CliRunner().invoke(app, ["forecast", str(tmp_path / "grid.toml"), "--json"])
    assert result.exit_code == 130
    (row,) = json.loads(result.stdout)
    assert [each["method"] for each in row["rows"]][-1] == "last hidden features"


def test_a_grid_keeps_the_time_budget(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(GRID.replace("train_size = 60", "train_size = 200"))
    shown = CliRunner().invoke(app, ["forecast", str(tmp_path / "grid.toml"), "--time-budget", "1e-9", "--json"])
    rows = json.loads(shown.stdout)
    assert all("NTK" not in [each["method"] for each in row["rows"]] for row in rows)
