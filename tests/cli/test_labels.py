"""`gapscope labels` of a function and a CSV file: table, page, list and JSON."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from commands import gapscope

WRONG = [5, 20, 41, 63]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Two separable classes; four labels are wrong."""
    lines = ["a,b,label"]
    for i in range(80):
        c = i % 2
        label = 1 - c if i in WRONG else c
        lines.append(f"{4 * c + (i * 7 % 11) / 10},{-3 * c + (i * 5 % 13) / 10},{'yes' if label else 'no'}")
    path = tmp_path / "table.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_wrong_labels_come_first_in_table_page_and_list(table: Path, tmp_path: Path) -> None:
    page, out = tmp_path / "page.html", tmp_path / "list.csv"
    done = gapscope("labels", table, "--html", page, "--csv", out)
    assert done.returncode == 0, done.stderr
    assert page.read_text().lstrip().lower().startswith("<!doctype html>")
    with out.open(newline="") as file:
        rows = list(csv.reader(file))
    column = rows[0].index("sample")
    assert {int(row[column]) for row in rows[1:5]} == set(WRONG)


def test_json_has_the_same_ranking(table: Path) -> None:
    found = json.loads(gapscope("labels", table, "--json").stdout)
    assert {row["sample"] for row in found["rows"][:4]} == set(WRONG)


def test_bad_input_is_one_message(tmp_path: Path) -> None:
    done = gapscope("labels", tmp_path / "none.csv")
    assert done.returncode == 1 and "none.csv" in done.stderr
    done = gapscope("labels", "no_such_module:data")
    assert done.returncode == 1 and "no_such_module" in done.stderr
