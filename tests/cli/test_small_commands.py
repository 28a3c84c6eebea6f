"""Lists, tables, labels, studies: commands of a few lines."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest
from typer.testing import CliRunner

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.cli.arguments import read_labelled_table
from gapscope.cli.study import app as study_app
from gapscope.cli.study import load_study
from gapscope.data.frames import encode_inputs
from support.commands import gapscope


def rows(what: str) -> list[dict[str, Any]]:
    done = gapscope("list", what, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)[what]


def test_all_measures_with_their_options() -> None:
    result = {row["name"]: row for row in rows("measures")}
    assert result.keys() == gs.list_measures().keys()
    trace = result["ntk_trace"]
    assert trace["needs"] == ["inputs"] and trace["cost"] == "many" and "method" in trace["options"]
    assert {name for name, row in result.items() if row["by_default"]} >= {
        "accuracy",
        "unit_sparsity",
    }


@pytest.mark.parametrize("what", ["measures", "penalties", "networks"])
def test_a_table_names_every_one(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    done = gapscope("list", what)
    first = {line.split()[0] for line in done.stdout.splitlines() if line.strip()}
    assert {row["name"] for row in rows(what)} <= first


def _write(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(["size,colour,name,label", *lines]) + "\n")
    return path


def test_text_and_missing_values_become_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"{i},{'red' if i % 2 else 'blue'},row {i},{i % 2}" for i in range(30)]
    lines[4] = ",red,row 4,0"
    table = read_labelled_table(_write(tmp_path / "a.csv", lines), None)
    (features, labels), _, notes = encode_inputs(table.pair)
    assert list(features) == ["size", "colour_blue", "colour_red"]
    assert (
        features.loc[4, "size"] == features["size"].median()
        and features.loc[4, "colour_red"] == 1.0
    )
    assert labels.tolist() == [i % 2 for i in range(30)]
    message = " ".join(notes)
    assert "colour" in message and "name" in message and "1 missing" in message
    assert "'label', the last" in capsys.readouterr().err


def test_a_second_file_gets_the_columns_of_the_first(tmp_path: Path) -> None:
    table = read_labelled_table(_write(tmp_path / "a.csv", ["1,red,x,0", "2,blue,y,1"] * 30), None)
    other = read_labelled_table(
        _write(tmp_path / "b.csv", ["1,green,x,0", "2,blue,z,1"] * 30), None, like=table
    )
    (first, _), (second, _), _ = encode_inputs(table.pair, other.pair)
    assert list(second) == list(first)
    assert second.iloc[0][["colour_blue", "colour_red"]].sum() == 0.0


@pytest.fixture
def two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, pandas.DataFrame]:
    """Two tables as files; the second has other columns in another order, and other cities."""
    rng = numpy.random.default_rng(0)
    tables: dict[str, pandas.DataFrame] = {}
    for name, cities, n in (("train", "abc", 120), ("test", "abq", 60)):
        labels = rng.permutation(numpy.resize(["no", "yes"], n))
        tables[name] = pandas.DataFrame(
            {
                "size": rng.normal(labels == "yes").round(3),
                "city": rng.choice([*cities], n),
                "label": labels,
            }
        )
    tables["test"] = tables["test"].assign(more=1.5)[["label", "more", "city", "size"]]
    for name, table in tables.items():
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    (tmp_path / "own_frame.py").write_text(
        "import pandas\ndef data(): return None, pandas.read_csv('train.csv')\n"
        "def pair():\n    frame = data()[1]\n    return None, (frame[['size', 'city']], frame['label'])\n"
    )
    monkeypatch.chdir(tmp_path)
    return tables


@pytest.mark.parametrize(
    "source", ["train.csv", "own_frame.py:data --target label", "own_frame.py:pair"]
)
def test_a_second_file_is_read_as_python_reads_a_second_frame(
    source: str, two_files: dict[str, pandas.DataFrame]
) -> None:
    expected = gs.check(
        None, two_files["train"], target="label", test=two_files["test"], only=["GS110"]
    )
    done = gapscope("check", *source.split(), "--test", "test.csv", "--only", "GS110", "--json")
    content = json.loads(done.stdout)
    (network,) = content["networks"]
    assert network["findings"][0]["evidence"] == expected.findings[0].evidence
    assert "no training row has, 'q'" in network["findings"][0]["evidence"]
    assert network["notes"] == list(expected.notes)
    assert any("more: not used" in note for note in content["notes"])


def test_a_whole_frame_of_a_function_needs_the_column_of_its_labels(two_files: Any) -> None:
    done = gapscope("check", "own_frame.py:data", "--test", "test.csv")
    assert done.returncode == 1 and "--target" in done.stderr


@pytest.mark.parametrize("command", ["check", "labels", "forecast", "out-of-sample"])
def test_notes_on_a_file_are_in_the_object_and_on_standard_error(
    command: str, two_files: Any
) -> None:
    more = {"check": ["--only", "GS104"], "out-of-sample": []}.get(command, ["--time-budget", "2"])
    done = gapscope(command, "train.csv", "--json", *more)
    notes = json.loads(done.stdout)["notes"]
    for part in ("'label', the last", "city: one column per value", "0 = 'no'"):
        assert sum(part in note for note in notes) == 1 and done.stderr.count(part) == 1


@pytest.mark.parametrize("source", ["train.csv", "own_frame.py:pair"])
def test_held_out_probabilities_are_those_of_python(
    source: str, two_files: dict[str, pandas.DataFrame]
) -> None:
    table = two_files["train"]
    expected = gs.out_of_sample(None, (table[["size", "city"]], table["label"]))
    done = gapscope("out-of-sample", source, "--output", "held.csv", "--json")
    content = json.loads(done.stdout)
    assert content["classes"] == ["no", "yes"] and content["score"] == expected.score
    assert [row["given"] for row in content["rows"]] == table["label"].tolist()
    written = pandas.read_csv("held.csv")
    assert list(written) == ["sample", "no", "yes", "given label"]
    assert written["sample"].tolist() == list(range(120))
    for rows in (written[["no", "yes"]], [row["predictions"] for row in content["rows"]]):
        assert numpy.allclose(rows, expected.predictions)


def test_held_out_targets_of_groups(two_files: dict[str, pandas.DataFrame]) -> None:
    two_files["train"].rename(columns={"city": "sample"}).to_csv("train.csv", index=False)
    done = gapscope("out-of-sample", "train.csv", "--target", "size", "--groups", "label", "--json")
    content = json.loads(done.stdout)
    assert content["groups"] == 2 and content["classes"] == []
    assert content["rows"][3]["given"] == [pytest.approx(two_files["train"]["size"][3])]
    done = gapscope("out-of-sample", "train.csv", "--target", "sample", "--output", "train.csv")
    assert done.returncode == 1 and "train.csv" in done.stderr
    refused = gapscope("out-of-sample", "own_frame.py:pair", "--groups", "label")
    assert refused.returncode == 2 and "pass a table" in refused.stderr


@pytest.mark.parametrize("command", ["labels", "forecast", "out-of-sample"])
@pytest.mark.parametrize(
    ("content", "fact"),
    [
        (b"", "empty"),
        (b"a,b\n", "0 rows"),
        (b"a\n1\n", "features"),
        (b"a,b\n1,2\n1,2,3\n", "line 3"),
        (b"a,label\n1,x\n2,\n3,y\n", "rows 2"),
        (b"\xff\xd8\xff\xe0\0\x10JFIF", "a picture"),
    ],
)
def test_a_file_that_is_no_table_gets_one_sentence(
    tmp_path: Path, command: str, content: bytes, fact: str
) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    done = gapscope(command, tmp_path / "a.csv")
    assert done.returncode == 1 and fact in done.stderr and done.stdout == ""


def test_row_numbers_do_not_give_the_label_away(tmp_path: Path) -> None:
    rng = numpy.random.default_rng(0)
    noise = pandas.DataFrame(rng.normal(size=(90, 3)), columns=["a", "b", "c"]).assign(
        label=numpy.repeat([0, 1, 2], 30)
    )
    noise.to_csv(tmp_path / "indexed.csv")  # with the row number as a first column without a name
    noise.to_csv(tmp_path / "plain.csv", index=False)
    rows = [
        gapscope("forecast", tmp_path / name, "--json") for name in ("indexed.csv", "plain.csv")
    ]
    first, second = (json.loads(done.stdout)["forecasts"][0] for done in rows)
    assert "omitted" in rows[0].stderr and "omitted" not in rows[1].stderr
    assert first["score"] == second["score"]


def test_a_table_is_checked_without_a_network(tmp_path: Path) -> None:
    lines = [f"{k % 2 + k / 300},{(k * 37) % 11},{k % 2}" for k in range(120)]
    (tmp_path / "a.csv").write_text("\n".join(["size,other,label", *lines, *lines[:20]]) + "\n")
    done = gapscope("check", tmp_path / "a.csv", "--only", "GS101,GS104", "--json")
    (result,) = json.loads(done.stdout)["networks"]
    assert [finding["code"] for finding in result["findings"]] == ["GS101"], done.stderr
    wrong = gapscope("check", tmp_path / "a.csv", "--target", "labl")
    assert wrong.returncode == 1 and "Did you mean 'label'" in wrong.stderr


def test_a_class_named_na_is_a_class(tmp_path: Path) -> None:
    lines = [f"{k % 3 + k / 100},{('NA', 'EU', 'AS')[k % 3]}" for k in range(60)]
    (tmp_path / "a.csv").write_text("\n".join(["size,label", *lines]) + "\n")
    done = gapscope("labels", tmp_path / "a.csv", "--json")
    assert {row["given"] for row in json.loads(done.stdout)["rows"]} == {"NA", "EU", "AS"}
    assert "'NA' is a class (20 samples)" in done.stderr


WRONG = [5, 20, 41, 63]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Two separable classes; four labels are wrong."""
    lines = ["a,b,label"]
    for i in range(80):
        c = i % 2
        label = 1 - c if i in WRONG else c
        lines.append(
            f"{4 * c + (i * 7 % 11) / 10},{-3 * c + (i * 5 % 13) / 10},{'yes' if label else 'no'}"
        )
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
    result = json.loads(gapscope("labels", table, "--json").stdout)
    assert {row["sample"] for row in result["rows"][:4]} == set(WRONG)


def test_claims_are_printed_and_their_page_is_written(tmp_path: Path) -> None:
    result = CliRunner().invoke(study_app, ["claims", "--results", str(tmp_path), "--write"])
    assert result.exit_code == 0 and f"written: {tmp_path / 'README.md'}" in result.output
    assert "\n  not run    fig4: Once BN is gone" in result.output
    page = (tmp_path / "README.md").read_text()
    assert page.startswith("# What holds, and what does not\n")
    assert "## Towards Understanding Regularization in Batch Normalization" in page
    assert (
        "| Fig. 3: on down-sampled ImageNet itself |  |  | **cannot be run here**: the data are not"
        in page
    )


def test_claims_of_one_study_as_text_and_json() -> None:
    output = (
        CliRunner()
        .invoke(study_app, ["claims", "overfitting_alarm", "--results", "nowhere"])
        .output
    )
    assert output.startswith("overfitting_alarm  An overfitting alarm") and "luo2019" not in output
    output = (
        CliRunner()
        .invoke(study_app, ["claims", "luo2019", "--results", "nowhere", "--json"])
        .output
    )
    first = json.loads(output)["claims"][0]
    assert set(first) == {"study", "outcome", "claim", "ours"} and first["outcome"] == "not run"


def test_an_unknown_study_is_an_error() -> None:
    with pytest.raises(InvalidInput, match=r"'luo219'.*Did you mean 'luo2019'"):
        load_study("luo219")


@pytest.mark.parametrize("command", ["forecast", "labels", "measure", "check", "estimate"])
def test_a_python_file_needs_the_name_of_a_function(tmp_path: Path, command: str) -> None:
    (tmp_path / "mine.py").write_text("def build():\n    return 1\n")
    done = gapscope(command, tmp_path / "mine.py")
    assert done.returncode == 1 and "must be module:function" in done.stderr


@pytest.mark.parametrize("command", ["forecast", "labels"])
def test_a_budget_is_checked_for_a_table_too(tmp_path: Path, command: str) -> None:
    (tmp_path / "a.csv").write_text(
        "a,y\n" + "".join(f"{k % 2 + k / 300},{k % 2}\n" for k in range(80))
    )
    done = gapscope(command, tmp_path / "a.csv", "--time-budget", "-3", "--json")
    message = "--time-budget must be greater than 0; got -3.0."
    assert done.returncode == 1 and f"error: {message}" in done.stderr
    assert json.loads(done.stdout)["error"] == message


@pytest.mark.parametrize("column", [(), ("--target", "y"), ("--target", "y.1")])
def test_several_columns_of_the_name_of_the_labels_are_refused(
    tmp_path: Path, column: tuple[str, ...]
) -> None:
    lines = [f"{k % 7},{k % 2},{k % 5},{k % 2}" for k in range(60)]
    (tmp_path / "a.csv").write_text("\n".join(["a,y,d,y", *lines]) + "\n")
    done = gapscope("forecast", tmp_path / "a.csv", *column)
    assert done.returncode == 1 and "one column 'y' of labels; it has several" in done.stderr
