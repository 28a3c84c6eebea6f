"""`gapscope leaderboard` on the competition's networks and on a pool."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gapscope.cli import app
from gapscope.pools import Pool
from gapscope.results.readings import Reading, Readings
from gapscope.results.records import Record

FIXTURE = Path(__file__).parents[1] / "fixtures" / "pgdl_task1_v4.csv"
FAST = ["--permutations", "60", "--measure", "m.rbf", "--measure", "m.wcv"]


@pytest.mark.thorough
def test_networks_of_the_competition_come_from_the_data_root(tmp_path: Path) -> None:
    (tmp_path / "pgdl").mkdir()
    shutil.copy(FIXTURE, tmp_path / "pgdl" / FIXTURE.name)
    shown = CliRunner().invoke(
        app, ["leaderboard", "--data-root", str(tmp_path), *FAST], env={"COLUMNS": "80"}
    )
    assert shown.exit_code == 0, shown.output
    lines = shown.stdout.splitlines()
    assert lines[0] == "1 of 2 measures predicts the gap beyond the hyperparameters: rbf."
    assert (
        "96 networks, 96 training configurations, 6 hyperparameters" in shown.stdout
        and "vc_dim" in shown.stdout
    )
    assert max(len(line.rstrip()) for line in lines[1:]) <= 80


@pytest.mark.thorough
def test_everything_as_json(tmp_path: Path) -> None:
    output = tmp_path / "board.json"
    shown = CliRunner().invoke(
        app, ["leaderboard", str(FIXTURE), *FAST, "--json", "--output", str(output)]
    )
    content = json.loads(shown.stdout)
    # numbers that are missing are null when printed
    stored = json.loads(output.read_text().replace('"NaN"', "null"))
    assert content == {**stored, "notes": []}
    assert {row["measure"]: row["verdict"] for row in content["rows"]}["m.rbf"] == "evidence"


def test_a_pool_is_a_table_too(tmp_path: Path) -> None:
    pool = Pool(tmp_path / "pool")
    for number in range(14):
        losses = {"train_loss": 0.0, "test_loss": 1.0}
        scores = {"train_accuracy": 1.0, "test_accuracy": 0.5 + number / 100, **losses}
        readings = Readings([Reading(measure="norm", number="norm", value=float(-number % 5))])
        pool.add(Record(id=str(number), spec={"network": {"name": "a"}, "hp": {"rate": number % 2}}, status="finished",
                        scores=scores, readings=readings))  # fmt: skip
    shown = CliRunner().invoke(
        app, ["leaderboard", str(pool.folder), "--permutations", "20", "--json"]
    )
    assert shown.exit_code == 0, shown.output
    content = json.loads(shown.stdout)
    assert (
        content["networks"] == 14
        and content["recipes"] == 2
        and content["hyperparameters"] == ["hp.rate"]
    )
    assert (
        content["rows"][0]["why"] == "2 training configurations are too few; at least 12 are needed"
    )
