"""CSV files on the command line: text and missing values become numbers, and the user is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from gapscope.cli.arguments import read_labelled_csv


def _write(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(["size,colour,name,label", *lines]) + "\n")
    return path


def test_text_and_missing_values_become_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"{i},{'red' if i % 2 else 'blue'},row {i},{i % 2}" for i in range(30)]
    lines[4] = ",red,row 4,0"
    features, labels = read_labelled_csv(_write(tmp_path / "a.csv", lines), None)
    assert list(features) == ["size", "colour_blue", "colour_red"]
    assert features.loc[4, "size"] == features["size"].median() and features.loc[4, "colour_red"] == 1.0
    assert labels.tolist() == [i % 2 for i in range(30)]
    told = capsys.readouterr().err
    assert "colour" in told and "name" in told and "1 missing" in told


def test_a_second_file_gets_the_columns_of_the_first(tmp_path: Path) -> None:
    first, _ = read_labelled_csv(_write(tmp_path / "a.csv", ["1,red,x,0", "2,blue,y,1"] * 30), None)
    second, _ = read_labelled_csv(_write(tmp_path / "b.csv", ["1,green,x,0", "2,blue,z,1"] * 30), None, like=first)
    assert list(second) == list(first)
    assert second.iloc[0][["colour_blue", "colour_red"]].sum() == 0.0
