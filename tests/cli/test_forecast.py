"""`gapscope expect` on a small grid."""

from __future__ import annotations

import json
from pathlib import Path

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


def test_a_row_a_network(tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(GRID)
    shown = CliRunner().invoke(app, ["expect", str(path)], env={"COLUMNS": "120"})
    assert shown.exit_code == 0, shown.output
    assert "fully_connected" in shown.output and "with twice the data" in shown.output
    rows = json.loads(CliRunner().invoke(app, ["expect", str(path), "--json", "--samples", "40"]).stdout)
    assert [row["noise"] for row in rows] == [0.0, 0.5] and rows[0]["score"] > rows[1]["score"]
    assert rows[0]["curve"][-2]["samples"] == 40
