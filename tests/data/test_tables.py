"""Tables as users have them: every encoding and separator, what is guessed is said, and no column shifts unseen."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy
import pandas
import pytest

from gapscope.base.errors import InvalidInput, UnreadableFile
from gapscope.data.frames import encode_frame
from gapscope.data.tables import read_cells, read_table

TEXT = "size,colour,label\n1,red,NA\n2,blü,EU\n3.5,red,AS\n"
EXPECTED = {"size": [1.0, 2.0, 3.5], "colour": ["red", "blü", "red"], "label": ["NA", "EU", "AS"]}


def write(folder: Path, content: bytes | str) -> Path:
    path = folder / "table.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("encoding", "named"),
    [("utf-8", ""), ("utf-8-sig", ""), ("utf-16", "UTF-16"), ("utf-16-le", "UTF-16"), ("utf-16-be", "UTF-16"),
     ("latin-1", "Latin-1"), ("cp1252", "Latin-1")],
)  # fmt: skip
@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
def test_every_encoding_is_the_same_table_and_is_named(
    tmp_path: Path, encoding: str, named: str, ends: str
) -> None:
    frame, notes = read_table(write(tmp_path, TEXT.replace("\n", ends).encode(encoding)))
    assert frame.to_dict("list") == EXPECTED
    assert len(notes) == bool(named) and named in " ".join(notes)


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_every_separator_is_found(tmp_path: Path, separator: str) -> None:
    frame, notes = read_table(write(tmp_path, TEXT.replace(",", separator)))
    assert frame.to_dict("list") == EXPECTED and len(notes) == (separator != ",")
    quoted = f'a{separator}b\n"x{separator} ""y"""{separator}1\n"two\nlines"{separator}2\n'
    assert read_table(write(tmp_path, quoted))[0]["a"].tolist() == [
        f'x{separator} "y"',
        "two\nlines",
    ]


def test_packed_and_parquet_files_are_tables(tmp_path: Path) -> None:
    assert read_table(write(tmp_path, gzip.compress(TEXT.encode())))[0].to_dict("list") == EXPECTED
    pytest.importorskip("pyarrow")
    pandas.DataFrame(EXPECTED).to_parquet(tmp_path / "table.parquet")
    assert read_table(tmp_path / "table.parquet")[0].to_dict("list") == EXPECTED
    with pytest.raises(UnreadableFile, match="Parquet"):
        read_table(write(tmp_path, b"PAR1 and no more"))


ROWS = [dict(zip(EXPECTED, row, strict=True)) for row in zip(*EXPECTED.values(), strict=True)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.jsonl", "\n".join(json.dumps(row) for row in ROWS)),
        ("t.ndjson", "\n\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS) + "\n"),
        ("t.json", "\n".join(json.dumps(row) for row in ROWS)),
        ("t.json", json.dumps(ROWS, indent=1)),
        ("t.json", json.dumps(EXPECTED)),
        ("t.json", pandas.DataFrame(EXPECTED).to_json()),
    ],
)
def test_json_is_a_table(tmp_path: Path, name: str, content: str) -> None:
    for path, written in (
        (tmp_path / name, content.encode()),
        (tmp_path / f"{name}.gz", gzip.compress(content.encode())),
    ):
        path.write_bytes(written)
        assert read_table(path)[0].to_dict("list") == EXPECTED


def test_nested_objects_of_json_are_columns_and_text_stays_text(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"meta": {"id": "007"}, "x": [1, 2]}\n{"meta": {"id": "008"}, "x": [3, 4]}')
    frame, _ = read_table(path)
    assert frame.to_dict("list") == {"meta.id": ["007", "008"], "x": [[1, 2], [3, 4]]}


@pytest.mark.parametrize(
    ("content", "fact"),
    [('{"a": 1}\n{"a": 2,', "line 2"), ("[1, 2]", "int")],
)
def test_json_that_is_no_table_is_refused(tmp_path: Path, content: str, fact: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(content)
    with pytest.raises(UnreadableFile, match=fact):
        read_table(path)


def test_words_for_missing_numbers_are_values_of_text(tmp_path: Path) -> None:
    frame, notes = read_table(
        write(tmp_path, "size,word,label\nNA,None,0\n2,low,1\n,high,1\n-,low,0\n")
    )
    assert frame["size"].isna().tolist() == [True, False, True, True] and frame["size"][1] == 2.0
    assert frame["word"].tolist() == ["None", "low", "high", "low"]
    assert len(notes) == 1 and "'-', 'NA'" in notes[0] and "2 cells" in notes[0]


def test_decimal_commas_and_spaces(tmp_path: Path) -> None:
    frame, _ = read_table(write(tmp_path, "a; b ;c\n1,5; cat ;-2\n-0,25;cat;3\n"))
    assert frame.to_dict("list") == {"a": [1.5, -0.25], "b": ["cat", "cat"], "c": [-2, 3]}
    assert read_table(write(tmp_path, 'a,b\n"1,5",x\n"2,5",y\n'))[0]["a"].tolist() == ["1,5", "2,5"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("5.1,3.5,setosa\n4.9,3.0,setosa\n6.1,3.0,virginica\n", ["1", "2", "3"]),
        ("5.1,3.5,0\n4.9,3.0,0\n6,2,1\n", ["1", "2", "3"]),
        ("2019,2020,label\n1,2,x\n3,4,y\n", ["2019", "2020", "label"]),
        ("a,b\nx,y\nz,y\n", ["a", "b"]),
    ],
)
def test_a_missing_header_is_noticed(tmp_path: Path, text: str, names: list[str]) -> None:
    frame, notes = read_table(write(tmp_path, text))
    assert list(frame) == names and len(frame) == text.count("\n") - (names[0] != "1")
    assert len(notes) == (names[0] == "1")


def test_names_of_rows_and_separators_at_the_end(tmp_path: Path) -> None:
    named = read_table(write(tmp_path, '"size","label"\n"a",3,"x"\n"b",4,"y"\n'))[0]
    assert named.to_dict("list") == {"row": ["a", "b"], "size": [3, 4], "label": ["x", "y"]}
    for text in ("a,b,\n1,2,\n3,4,\n", "a,b\n1,2,\n3,4,\n"):
        assert read_table(write(tmp_path, text))[0].to_dict("list") == {"a": [1, 3], "b": [2, 4]}


@pytest.mark.parametrize(
    ("content", "fact"),
    [
        (b"", "empty"),
        (b"\n \n", "empty"),
        (b"a,b\n1,2\n1,2,3\n4,5\n", "line 3 has 3"),
        (b"a,b,c\n1,2,3\n\n1,2\n", "line 4 has 2"),
        (b'a,b\n"x\ny",1\n2\n', "line 4 has 1"),
        (b'a,b\n"x,1\n', "line"),
        (b"PK\x03\x04rest", "spreadsheet"),
        (b"ARROW1\0\0rest", "Feather.*read_feather"),
        (b"\x80\x05\x95rest", "pickle.*read_pickle"),
        (b"Report of May\na,b,c\n1,2,3\n4,5,6\n", "line 1 has 1 of the 3 fields.*from line 2"),
        (b"Report,May\n\nUnits: m\na,b,c\n1,2,3\n4,5,6\n", "line 1, 3 has 2 .*from line 4"),
        (b"'a','b'\n'x',1\n'y',2\n", "first line does by '"),
        (bytes(range(256)), "no text"),
        (b"\x1f\x8bbroken", "reading it failed"),
        (b"\xff\xfea", "damaged"),
    ],
)
def test_what_is_no_table_is_refused_in_one_sentence(
    tmp_path: Path, content: bytes, fact: str
) -> None:
    for read in (read_table, read_cells):
        with pytest.raises(UnreadableFile, match=fact):
            read(write(tmp_path, content))


def test_missing_files_and_folders(tmp_path: Path) -> None:
    for path, fact in ((tmp_path / "absent.csv", "no such file"), (tmp_path, "folder")):
        with pytest.raises(UnreadableFile, match=fact):
            read_table(path)


def test_cells_are_text_as_they_are(tmp_path: Path) -> None:
    cells = read_cells(write(tmp_path, "sample;label\n1; NA\n\n02;\n".encode("utf-16")))
    assert cells.frame.to_dict("list") == {"sample": ["1", "02"], "label": [" NA", ""]}
    assert list(cells.frame.index) == [2, 4] and len(cells.notes) == 2
    assert [cells.with_point(cell) for cell in ("1,5", "a,b", "1,5,2")] == ["1.5", "a,b", "1,5,2"]


def test_a_line_that_names_the_separator_is_no_row(tmp_path: Path) -> None:
    for first in ("sep=;", '"sep=;"', "SEP=;"):
        path = write(tmp_path, f"{first}\na;b\n1,5;x\n2,5;y\n".encode())
        assert read_table(path)[0].to_dict("list") == {"a": [1.5, 2.5], "b": ["x", "y"]}
        assert list(read_cells(path).frame.index) == [3, 4]
    with pytest.raises(UnreadableFile, match="line 4 has 3"):
        read_table(write(tmp_path, b"sep=;\na;b\n1;2\n1;2;3\n"))
    with pytest.raises(UnreadableFile, match="line 2 has 3"):
        read_cells(write(tmp_path, b"a;b\n1;2;3\n1;2;3\n"))
    assert read_cells(write(tmp_path, b"a;b\n1;2;\n")).frame.to_dict("list") == {
        "a": ["1"],
        "b": ["2"],
    }


@pytest.mark.parametrize(
    "name", ["", "Unnamed: 0", "row", "id", "customer_id", "customerID", "any"]
)
def test_numbers_of_rows_are_left_out(name: str) -> None:
    frame = pandas.DataFrame(
        {name: range(5, 45), "size": [3.0, 1.0] * 20, "last": range(40, 0, -1)}
    )
    encoded, notes = encode_frame(frame)
    assert list(encoded) == ["size", "last"] and (name or "without a name") in notes[0]
    # the columns of a second part are those of the first
    assert list(encode_frame(frame.iloc[::-1], like=encoded)[0]) == ["size", "last"]


def test_identifiers_are_left_out_and_measurements_stay() -> None:
    shuffled = [(17 * k) % 40 for k in range(40)]
    frame = pandas.DataFrame(
        {"user_id": shuffled, "paid": shuffled, "width": [k / 7 for k in range(40)], "x": 1.0}
    )
    encoded, notes = encode_frame(frame)
    assert list(encoded) == ["paid", "width", "x"] and len(notes) == 1
    repeated = pandas.DataFrame({"id": [1, 2] * 20, "x": 1.0})
    assert list(encode_frame(repeated)[0]) == ["id", "x"]
    alone = pandas.DataFrame({"x": range(40)})
    assert list(encode_frame(alone)[0]) == ["x"]  # something must remain


def test_empty_columns_are_left_out_and_dates_are_days() -> None:
    days = pandas.to_datetime(["2024-01-01 00:00", "2024-01-03 00:00", "2024-01-01 12:00"])
    frame = pandas.DataFrame({"nothing": [None] * 3, "when": days, "x": [1.0, 2.0, 3.0]})
    encoded, notes = encode_frame(frame)
    assert (
        encoded.to_dict("list") == {"when": [19723.0, 19725.0, 19723.5], "x": [1.0, 2.0, 3.0]}
        and len(notes) == 2
    )


def test_columns_whose_names_are_equal_keep_their_own_values(tmp_path: Path) -> None:
    frame, notes = read_table(write(tmp_path, "a, a,b\nx,u,1\ny,v,2\n"))
    assert frame.to_dict("list") == {"a": ["x", "y"], "a.1": ["u", "v"], "b": [1, 2]}
    assert len(notes) == 1 and "a, a.1" in notes[0]


def test_dates_of_a_csv_file_are_days_and_may_be_missing(tmp_path: Path) -> None:
    rows = "\n".join(f"2024-01-{1 + (k * 7) % 30:02},{k % 3}" for k in range(30))
    frame, notes = read_table(write(tmp_path, f"when,x\n{rows}\nNA,1\n"))
    encoded, more = encode_frame(frame)
    assert encoded["when"].iloc[0] == 19723 and not encoded["when"].isna().any()
    assert "'NA'" in notes[0] and more[0] == "when: days since 1970."


@pytest.mark.parametrize("separator", [",", "\t", ";"])
def test_a_repeated_header_is_named(tmp_path: Path, separator: str) -> None:
    text = "a,b\n1,x\n\n2,y\na,b\n3,z\n".replace(",", separator)
    for read in (read_table, read_cells):
        with pytest.raises(UnreadableFile, match="5 repeats the header"):
            read(write(tmp_path, text.encode()))
    frame = pandas.DataFrame({"a": ["1", "a", "2"], "b": ["x", "b", "y"]})
    with pytest.raises(InvalidInput, match="row 2 repeats"):
        encode_frame(frame)
    assert len(read_table(write(tmp_path, b"1,x\n1,x\n1,x\n2,y\n"))[0]) == 4  # no header


def test_comments_before_the_header_are_skipped_with_a_note(tmp_path: Path) -> None:
    frame, notes = read_table(write(tmp_path, b"# made by a tool, 2020\n# v1\na,b\n1,x\n2,y\n"))
    assert frame.to_dict("list") == {"a": [1, 2], "b": ["x", "y"]} and "2 lines" in notes[0]
    frame, notes = read_table(write(tmp_path, b"# v1\n#a,b\n1,2.5\n3,4.5\n"))
    assert frame["b"].tolist() == [2.5, 4.5] and "1 line" in notes[0]
    with pytest.raises(UnreadableFile, match="line 4 has 3"):
        read_table(write(tmp_path, b"# v1\na,b\n1,x\n2,y,z\n"))


def test_arrays_of_numpy_are_named(tmp_path: Path) -> None:
    numpy.savez(tmp_path / "a.npz", x=numpy.ones(3))
    numpy.save(tmp_path / "a.npy", numpy.ones(3))
    for name in ("a.npz", "a.npy"):
        with pytest.raises(UnreadableFile, match="NumPy"):
            read_table(tmp_path / name)


def test_codes_with_leading_zeros_stay_text(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("zip,n,t\n00501,1.05,10:07\n02134,20,11:00\n90210,3,09:01\n")
    table, _ = read_table(path)
    assert table["zip"].tolist() == ["00501", "02134", "90210"]
    assert table["n"].tolist() == [1.05, 20, 3]
    path.write_text("zip,n\n00501,1\nNA,2\n")
    assert read_table(path)[0]["zip"].tolist() == ["00501", "NA"]


def test_truth_values_may_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b\nTrue,1\n,2\nFalse,3\n")
    assert read_table(path)[0]["a"].fillna(-1).tolist() == [1, -1, 0]


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"PK\x03\x04" + bytes(26) + b"net/data.pkl", "a file of torch.save"),
        (b"\x89PNG\r\n\x1a\n" + bytes(30), "a picture"),
        (bytes(range(1, 256)) * 2, "bytes that are no text"),
    ],
)
def test_files_that_are_no_tables_are_named(tmp_path: Path, content: bytes, match: str) -> None:
    (tmp_path / "table.csv").write_bytes(content)
    with pytest.raises(UnreadableFile, match=match):
        read_table(tmp_path / "table.csv")


def test_columns_without_a_name_are_text_in_a_second_file(tmp_path: Path) -> None:
    path = write(tmp_path, b",kind\n0,a\n1,b\n")
    table, _ = read_table(path, as_text=["Unnamed: 0", "kind"])
    assert table.to_numpy().tolist() == [["0", "a"], ["1", "b"]]


@pytest.mark.parametrize(
    ("amounts", "others", "note"),
    [
        ("4.268 950 9500", "-0,59 1,5 2,25", True),
        ("4.268 NA 1.000", "0,512 1,50000 7", True),
        ("4.268 950 1.500", "7 8 9", False),  # no decimal commas
        ("4.268 950 1.500", "1,2 3 4", False),  # lists of whole numbers
        ("4.268 950 1.500", "3,645 1,472 2,125", False),  # commas between thousands
        ("4.268 0.950 1.500", "0,5 0,6 0,7", False),
        ("4.268 9.5 1.500", "0,5 0,6 0,7", False),
    ],
)
@pytest.mark.parametrize("separator", [";", "\t"])
def test_points_are_decimal_points_and_noted_if_they_may_be_between_thousands(
    tmp_path: Path, amounts: str, others: str, note: bool, separator: str
) -> None:
    cells = amounts.split()
    rows = [["amount", "b", "label"], *zip(cells, others.split(), "xyz", strict=True)]
    frame, notes = read_table(write(tmp_path, "\n".join(map(separator.join, rows))))
    numbers = [float(cell) for cell in cells if cell != "NA"]
    assert frame["amount"].dropna().tolist() == numbers
    assert any(text.startswith("amount: points are read") for text in notes) == note


def test_one_note_names_all_columns_with_points(tmp_path: Path) -> None:
    rows = "4.268;1.500;0,5;1.234.567\n1.250;7;2,5;192.168.100.101\n"
    frame, notes = read_table(write(tmp_path, f"a;b;c;d\n{rows}"))
    assert frame["d"].tolist() == ["1.234.567", "192.168.100.101"]
    assert [text[:10] for text in notes if "points" in text] == ["a, b: poin"]
