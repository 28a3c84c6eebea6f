"""`gapscope correct` changes the labels of a reviewed list, and nothing else of a file."""

from __future__ import annotations

from pathlib import Path

import pandas
import pytest
from typer.testing import CliRunner, Result

from gapscope.base.errors import GapscopeError
from gapscope.cli import app

LINES = [
    "id;price;note;kind",
    '1;1,5;"a;b";007',
    "2;2,5;NA;008",
    '3;;"say ""hi""";007',
    "4;2,50;=1+1;008",
]


def correct(table: Path, review: str, output: str, *options: str) -> Result:
    reviewed = table.with_name("reviewed.csv")
    reviewed.write_text(review)
    return CliRunner().invoke(
        app,
        ["correct", str(table), str(reviewed), str(table.with_name(output)), *options],
    )


def test_other_cells_of_a_csv_file_stay(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("\n".join(LINES) + "\n")
    done = correct(table, "sample,label\n0,8\n1,\n2,drop\n", "out.csv")
    assert done.exit_code == 0, done.exception
    assert "1 label set, 1 row dropped" in done.stderr
    changed = LINES[1].replace("007", "008")
    expected = [LINES[0], changed, LINES[2], LINES[4]]
    assert tmp_path.joinpath("out.csv").read_text().splitlines() == expected


def test_labels_as_they_are_do_not_count_and_a_list_may_be_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    table = tmp_path / "table.csv"
    table.write_text("\n".join(LINES) + "\n")
    review = tmp_path / "list.parquet"
    labels = ["008", "008", None, "drop"]
    pandas.DataFrame({"sample": range(4), "label": labels}).to_parquet(review)
    command = ["correct", str(table), str(review), str(tmp_path / "out.csv")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.exception
    assert "1 label set (1 already as in the list), 1 row dropped" in done.stderr
    changed = LINES[1].replace("007", "008")
    assert (tmp_path / "out.csv").read_text().splitlines() == [LINES[0], changed, *LINES[2:4]]


def test_lists_of_several_reviewers_are_applied_together(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("\n".join(LINES) + "\n")
    first, second, output = (tmp_path / name for name in ("first.csv", "second.csv", "out.csv"))
    first.write_text("sample,label\n0,008\n")
    second.write_text("sample,label\n0,008\n3,drop\n")
    command = ["correct", str(table), str(first), str(second), str(output)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.exception
    assert output.read_text().splitlines() == [
        LINES[0], LINES[1].replace("007", "008"), *LINES[2:4]
    ]  # fmt: skip
    second.write_text("sample,label\n0,drop\n")
    with pytest.raises(GapscopeError, match=r"sample 0 .*first.*second"):
        CliRunner().invoke(app, command, catch_exceptions=False)


@pytest.mark.parametrize("orient", ["table", "split", "values"])
def test_other_json_of_pandas_is_named_with_what_is_needed(orient: str, tmp_path: Path) -> None:
    table = tmp_path / "table.json"
    pandas.DataFrame({"x": [1, 2], "y": ["a", "b"]}).to_json(table, orient=orient)  # type: ignore[call-overload]
    with pytest.raises(GapscopeError, match=r"[^.]\. With pandas .*orient='records'"):
        raise correct(table, "sample,label\n0,b\n", "out.json").exception or AssertionError


@pytest.mark.parametrize("form", ["€{}", "{}%", "{} kg"])
def test_new_amounts_may_be_written_as_those_of_the_column(form: str, tmp_path: Path) -> None:
    amounts = [form.format(k + 0.25) for k in range(40)]
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["x,y", *(f"{k},{text}" for k, text in enumerate(amounts))]))
    amounts[3] = form.format(13.5)
    amounts[5] = form.format(7)
    review = f"sample,label\n3,{amounts[3]}\n5,7\n"
    done = correct(table, review, "out.csv")
    assert done.exit_code == 0, done.exception
    assert list(pandas.read_csv(tmp_path / "out.csv").y) == amounts
    with pytest.raises(GapscopeError, match="a number is needed"):
        raise correct(table, "sample,label\n3,13.5 km\n", "o.csv").exception or AssertionError


def test_a_regression_target(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    lines = ["y,x", *(f"{k + 0.25},{k * k}" for k in range(40))]
    table.write_text("\n".join(lines) + "\n")
    done = correct(table, "sample,label\n3,17.5\n", "out.csv", "--target", "y")
    assert done.exit_code == 0, done.exception
    lines[4] = "17.5,9"
    assert tmp_path.joinpath("out.csv").read_text().splitlines() == lines


@pytest.mark.parametrize("ending", ["jsonl", "json", "parquet"])
def test_other_formats_keep_their_types(ending: str, tmp_path: Path) -> None:
    frame = pandas.DataFrame({"size": range(6), "score": [2, 4, 6, 8, 10, 12], "kind": [*"xyxyxy"]})
    table = tmp_path / f"table.{ending}"
    if ending == "parquet":
        pytest.importorskip("pyarrow")
        frame["kind"] = pandas.Categorical(frame["kind"], categories=["x", "y", "z"])
        frame.to_parquet(table)
        read = pandas.read_parquet
    else:
        frame.to_json(table, orient="records", lines=ending == "jsonl")
        read = pandas.read_json
    done = correct(table, "sample,label\n0,y\n5,drop\n", f"out.{ending}")
    assert done.exit_code == 0, done.exception
    written = tmp_path / f"out.{ending}"
    found = read(written, lines=True) if ending == "jsonl" else read(written)
    expected = frame.iloc[:5].copy()
    expected.loc[0, "kind"] = "y"
    pandas.testing.assert_frame_equal(found, expected)


@pytest.mark.parametrize(
    ("output", "review", "message"),
    [
        ("table.csv", "sample,label\n0,8\n", "is read as data"),
        ("out.parquet", "sample,label\n0,8\n", "must end in .csv"),
        ("out.csv.gz", "sample,label\n0,8\n", "must end in .csv"),
        ("out.csv", "sample,label\n9,8\n", "names sample '9'"),
        ("out.csv", "sample,label\n0,009\n", "'007', '008' is needed"),
    ],
)
def test_what_is_wrong(output: str, review: str, message: str, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("\n".join(LINES) + "\n")
    done = correct(table, review, output)
    assert isinstance(done.exception, GapscopeError) and message in str(done.exception)
    assert not tmp_path.joinpath("out.csv").exists()


def test_a_folder_is_no_table(tmp_path: Path) -> None:
    done = correct(tmp_path / "pictures", "sample,label\n0,8\n", "out.csv")
    assert isinstance(done.exception, GapscopeError) and "must be a table" in str(done.exception)


@pytest.mark.parametrize(
    ("separator", "old", "new"),
    [
        (";", "{:.3f}", "9304,5"),
        (",", '"${:,.2f}"', '"$9304.5"'),
        (",", "{:.1f}%", "9304.5%"),
        (";", "{:.1f}k", "9304.5k"),
    ],
)
def test_a_target_has_the_form_of_its_column(
    separator: str, old: str, new: str, tmp_path: Path
) -> None:
    table = tmp_path / "table.csv"
    cells = [old.format(1000.2 + 7.31 * k) for k in range(40)]
    if separator == ";" and "k" not in old:
        cells = [cell.replace(".", ",") for cell in cells]
    lines = [f"y{separator}x", *(f"{cell}{separator}{k}" for k, cell in enumerate(cells))]
    table.write_text("\n".join(lines))
    done = correct(table, "sample,label\n3,9304.5\n", "out.csv", "--target", "y")
    assert done.exit_code == 0, done.exception
    lines[4] = f"{new}{separator}3"
    assert tmp_path.joinpath("out.csv").read_text().split("\n") == lines


def test_a_target_that_its_column_cannot_hold(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    cells = [f"1.{234 + 7 * k} €" for k in range(30)]
    cells[3] = "6.470,15 €"  # tells that the point marks thousands
    table.write_text("y;x\n" + "".join(f"{cell};{k}\n" for k, cell in enumerate(cells)))
    done = correct(table, "sample,label\n3,9304\n", "out.csv", "--target", "y")
    assert isinstance(done.exception, GapscopeError) and "'6.470,15 €'" in str(done.exception)


def test_a_target_that_is_set_already_keeps_its_text(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    content = "y,x\n" + "".join(f"{k}.50,{k * k}\n" for k in range(30))
    table.write_text(content)
    done = correct(table, "sample,label\n3,3.5\n", "out.csv", "--target", "y")
    assert done.exit_code == 0 and tmp_path.joinpath("out.csv").read_text() == content
