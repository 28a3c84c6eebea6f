"""Files of tables are edited in place: all but the changed cells and the dropped rows stays, byte for byte."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pandas
import pytest

from gapscope.base.errors import InvalidInput
from gapscope.data.edited_files import open_for_edit

N_ROWS = 6


def edit(path: Path, content: bytes, column: str) -> bytes:
    """Return the content with the cell of row 1 in row 0, and without row 2."""
    path.write_bytes(content)
    file = open_for_edit(path, column)
    assert len(file.cells) == N_ROWS
    return file.edited({0: file.cells[1]}, [2])


def kind(row: int, is_changed: bool) -> str:
    return "b" if is_changed or row % 2 else "a"


CSV: dict[str, tuple[str, Callable[[int, str], str], str, str]] = {
    "plain": ("id,p,kind", lambda row, word: f"{row},1.50,{word}", "\n", "utf-8"),
    "ends of lines and mark": (
        "id,p,kind",
        lambda row, word: f'{row},"x, y",{word}',
        "\r\n",
        "utf-8-sig",
    ),
    "UTF-16": ("id,p,kind", lambda row, word: f"{row},é,{word}", "\n", "utf-16"),
    "Latin-1": ("id,p,kind", lambda row, word: f"{row},é€,{word}", "\r\n", "cp1252"),
    "separator line": (
        "sep=;\nid;p;kind",
        lambda row, word: f"{row};{row},5;{word}",
        "\n",
        "utf-8",
    ),
    "comments": ("# a\n#\nid,p,kind", lambda row, word: f"{row}, NA ,{word}", "\n", "utf-8"),
    "quotes": ('"id","p","kind"', lambda row, word: f'"{row}","","{word}"', "\n", "utf-8"),
    "last separators": ("id,kind", lambda row, word: f"{row},{word},", "\n", "utf-8"),
    "empty last column": ("id,kind,", lambda row, word: f"{row},{word},", "\n", "utf-8"),
    "names of rows": ("p,kind", lambda row, word: f'"r{row}",{row}.5,{word}', "\n", "utf-8"),
    "equal names": ("n,n,kind", lambda row, word: f"{row},{row},{word}", "\n", "utf-8"),
    "no name": (",kind", lambda row, word: f"{row},{word}", "\n", "utf-8"),
    "blank lines": (
        "id, kind",
        lambda row, word: f"{row}, {word}" + "\n" * (row > 2),
        "\n",
        "utf-8",
    ),
    "quoted lines": ("id,p,kind", lambda row, word: f'{row},"a\r\n""",{word}', "\n", "utf-8"),
    "first column": ("kind,id", lambda row, word: f"{word},{row}", "\r", "utf-8"),
}


@pytest.mark.parametrize("name", CSV)
@pytest.mark.parametrize("is_zipped", [False, True])
def test_all_else_in_a_csv_file_stays(name: str, is_zipped: bool, tmp_path: Path) -> None:
    header, line, end, codec = CSV[name]

    def content(rows: list[int], changed: int) -> bytes:
        lines = [header, *(line(row, kind(row, row == changed)) for row in rows)]
        return end.join(lines).encode(codec)

    raw = content([*range(N_ROWS)], -1)
    found = edit(tmp_path / "t.csv", gzip.compress(raw) if is_zipped else raw, "kind")
    assert found == content([0, 1, 3, 4, 5], 0)


def test_a_csv_file_without_names(tmp_path: Path) -> None:
    lines = [f"{row}.5,{kind(row, False)}" for row in range(N_ROWS)]
    found = edit(tmp_path / "t.csv", "\n".join(lines).encode(), "2")
    lines[0] = "0.5,b"
    assert found.decode().split("\n") == lines[:2] + lines[3:]


def json_row(row: int, is_changed: bool) -> str:
    count = "null" if row == 3 else str(10**16 + row)
    word = kind(row, is_changed)
    absent = "" if row % 3 else ', "u": [1,  2]'
    return f'{{"p":{row}e-11,  "n": {count}, "m": {{"a": {{}}, "kind": "\\u00e9{word}"}}{absent}}}'


@pytest.mark.parametrize(
    ("start", "between", "end", "name"),
    [
        ("", "\n", "\n", "t.jsonl"),
        ("", "\r\n", "", "t.ndjson"),
        ("[\n  ", ",\n  ", "\n]\n", "t.json"),
        ("[", ",", "]", "t.json"),
    ],
)
def test_all_else_in_rows_of_json_stays(
    start: str, between: str, end: str, name: str, tmp_path: Path
) -> None:
    rows = [json_row(row, False) for row in range(N_ROWS)]
    found = edit(tmp_path / name, (start + between.join(rows) + end).encode(), "m.kind")
    rows[0] = json_row(0, True)
    assert found.decode() == start + between.join(rows[:2] + rows[3:]) + end


def test_last_rows_of_a_json_array(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('[{"k": 1}, {"k": 2}, {"k": 3}]')
    assert open_for_edit(path, "k").edited({}, [1, 2]) == b'[{"k": 1}]'


def test_columns_of_json_stay_columns(tmp_path: Path) -> None:
    columns = {"p": [k * 1e-11 for k in range(N_ROWS)], "kind": [*"ababab"], "one": 1}
    found = edit(tmp_path / "t.json", json.dumps(columns, indent=1).encode(), "kind")
    expected = {"p": [k * 1e-11 for k in (0, 1, 3, 4, 5)], "kind": [*"bbbab"], "one": 1}
    assert found.decode() == json.dumps(expected, indent=1)
    path = tmp_path / "t.json"
    path.write_text('{"p": {"0": 1, "1": 2}, "kind": {"1": "a", "0": "b"}}')
    with pytest.raises(InvalidInput, match="same rows"):
        open_for_edit(path, "kind")


@pytest.mark.parametrize("column", ["kind", "c"])
def test_types_and_index_of_parquet_stay(column: str, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    frame = pandas.DataFrame(
        {
            "n": pandas.array([None, *range(5)], dtype="Int64"),
            "kind": [*"ababab"],
            "c": pandas.Categorical([*"ababab"], categories=["z", "b", "a"]),
        },
        index=pandas.Index([*"pqrstu"], name="patient"),
    )
    frame.to_parquet(tmp_path / "t.parquet")
    (tmp_path / "o.parquet").write_bytes(
        edit(tmp_path / "t.parquet", (tmp_path / "t.parquet").read_bytes(), column)
    )
    frame.loc["p", column] = "b"
    pandas.testing.assert_frame_equal(
        pandas.read_parquet(tmp_path / "o.parquet"), frame.drop(index="r")
    )
    old, new = (parquet.read_schema(tmp_path / f"{name}.parquet") for name in "to")
    assert old.equals(new, check_metadata=True)


@pytest.mark.parametrize("name", ["patient", "kind", None])
def test_index_that_parquet_stores_as_a_range_keeps_its_numbers(
    name: str | None, tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow")
    index = pandas.RangeIndex(1000, 1000 + 2 * N_ROWS, 2, name=name)
    frame = pandas.DataFrame({"kind": [kind(row, False) for row in range(N_ROWS)]}, index=index)
    path = tmp_path / "t.parquet"
    frame.to_parquet(path)
    path.write_bytes(edit(path, path.read_bytes(), "kind"))
    frame.iloc[0] = kind(0, True)
    pandas.testing.assert_frame_equal(
        pandas.read_parquet(path), frame.drop(index=1004), check_index_type=False
    )


def test_integers_of_parquet_stay_integers(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "t.parquet"
    pandas.DataFrame({"y": [10, 20]}).to_parquet(path)
    file = open_for_edit(path, "y")
    assert repr(file.cell(30.0, 0)) == "30"
    with pytest.raises(InvalidInput, match="integers"):
        file.cell(30.5, 0)
