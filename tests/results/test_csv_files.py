"""Cells of CSV lists: no spreadsheet takes one for a formula, and reading returns what was written."""

from __future__ import annotations

from pathlib import Path

import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapscope.results.csv_files import from_csv_cell, to_csv_cell, write_csv

DANGEROUS = ["=HYPERLINK(1)", "+1", "-1", "@x", "\t=1", "\r=1", " =1", "'=1", "''@x", "\uff1d1"]


@pytest.mark.parametrize("text", DANGEROUS)
def test_text_that_looks_like_a_formula_is_quoted(text: str) -> None:
    assert to_csv_cell(text) == f"'{text}"
    assert from_csv_cell(to_csv_cell(text)) == text


@given(st.text(alphabet="'=+-@ \t\rax\uff20", max_size=6))
def test_reading_returns_what_was_written(text: str) -> None:
    cell = to_csv_cell(text)
    assert from_csv_cell(cell) == text
    assert cell.lstrip()[:1] not in {"=", "+", "-", "@", "\uff20"}


def test_numbers_and_plain_text_stay() -> None:
    for value in (-1, -1.5, "cat", "a=b", "'tis", "", None):
        assert to_csv_cell(value) is value and from_csv_cell(value) is value


def test_a_table_is_written_with_its_names_quoted_and_its_numbers_as_they_are(
    tmp_path: Path,
) -> None:
    table = pandas.DataFrame(
        {"=name": ["@x", "cat"], "margin": [-0.5, 1.0], "flagged": [None, True]}
    )
    path = write_csv(tmp_path / "list.csv", table)
    assert path.read_text() == "'=name,margin,flagged\n'@x,-0.5,\ncat,1.0,True\n"
    back = pandas.read_csv(path).rename(columns=from_csv_cell)
    assert back["=name"].map(from_csv_cell).tolist() == ["@x", "cat"] and back[
        "margin"
    ].tolist() == [-0.5, 1.0]
