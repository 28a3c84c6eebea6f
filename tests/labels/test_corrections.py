"""Corrections of labels from reviewed lists."""

from __future__ import annotations

import unicodedata
from collections import deque
from pathlib import Path
from typing import Any

import numpy
import pandas
import pyarrow
import pytest
import torch

import gapscope as gs
from gapscope.base.errors import GapscopeError, InvalidInput
from gapscope.labels.label_cells import drop_word
from support.commands import gapscope

X = torch.arange(8.0).reshape(4, 2)
NAMES = numpy.array([" a", "b", "drop", "b"])


def apply(tmp_path: Path, text: str, targets: object, *, encoding: str = "utf-8") -> gs.Samples:
    path = tmp_path / "reviewed.csv"
    path.write_text(text, encoding=encoding)
    return gs.apply_label_corrections((X, targets), path)


def names(samples: gs.Samples) -> list[str]:
    return [samples.class_names[code] for code in samples.y.tolist()]


def test_a_class_called_drop_is_a_class(tmp_path: Path) -> None:
    corrected = apply(tmp_path, "sample,label\n1,drop\n3,(drop)\n", NAMES)
    assert names(corrected) == [" a", "drop", "drop"]
    assert drop_word(["drop", "(drop)"]) == "((drop))"


@pytest.mark.parametrize("cell", ["a", " a", "a "])
def test_spaces_around_a_class_name_do_not_matter(tmp_path: Path, cell: str) -> None:
    assert names(apply(tmp_path, f"sample,label\n1,{cell}\n", NAMES)) == [" a", " a", "drop", "b"]


def test_names_that_differ_by_spaces_alone_are_told_apart(tmp_path: Path) -> None:
    targets = numpy.array(["a", " a", "b", "b"])
    assert names(apply(tmp_path, 'sample,label\n2," a"\n3,a\n', targets)) == ["a", " a", " a", "a"]
    with pytest.raises(InvalidInput, match="line 2"):
        apply(tmp_path, 'sample,label\n2,"  a"\n', targets)


@pytest.mark.parametrize("label", ["7", "1_0", "-1", "1000000000000", "nan", "1.5", "one"])
def test_integer_labels_must_occur(tmp_path: Path, label: str) -> None:
    with pytest.raises(InvalidInput, match="0, 1"):
        apply(tmp_path, f"sample,label\n0,{label}\n", torch.tensor([0, 1, 1, 0]))


@pytest.mark.parametrize("label", ["1_5", "nan", "inf", "high", "0x1"])
def test_targets_are_plain_numbers(tmp_path: Path, label: str) -> None:
    with pytest.raises(InvalidInput, match="a number"):
        apply(tmp_path, f"sample,label\n0,{label}\n", torch.arange(4.0)[:, None])


def test_numbers_as_spreadsheets_write_them(tmp_path: Path) -> None:
    assert apply(
        tmp_path, "sample;label\n0;1.0\n2.0;drop\n", torch.tensor([0, 1, 1, 0])
    ).y.tolist() == [1, 1, 0]
    corrected = apply(
        tmp_path, "sample\tlabel\n0\t'-2.5e1\n", torch.arange(4.0)[:, None], encoding="utf-8-sig"
    )
    assert corrected.y.flatten().tolist() == [-25, 1, 2, 3]


def test_contradicting_lines_are_named(tmp_path: Path) -> None:
    targets = torch.tensor([0, 1, 1, 0])
    assert apply(tmp_path, "sample,label\n0,1\n0,\n0,1\n", targets).y.tolist() == [1, 1, 1, 0]
    with pytest.raises(InvalidInput, match="lines 2 and 4"):
        apply(tmp_path, "sample,label\n0,1\n1,0\n0,drop\n", targets)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "empty"),
        (b"\xff\xfes\x00a\x00", "UTF-16|columns"),
        (b"sample,label\n0,1,2,3\n0,1\n1,2,3,4,5,6\n", "line 2 has 4"),
        (b"index,label\n0,1\n", "columns sample and label"),
        (b"sample,label\n4,1\n", "0 to 3"),
        (b"sample,label\n0,drop\n1,drop\n2,drop\n3,drop\n", "drops all 4"),
    ],
)
def test_files_that_are_no_review(tmp_path: Path, content: bytes, match: str) -> None:
    path = tmp_path / "reviewed.csv"
    path.write_bytes(content)
    with pytest.raises(GapscopeError, match=match):
        gs.apply_label_corrections((X, torch.tensor([0, 1, 1, 0])), path)
    with pytest.raises(GapscopeError, match="no such file"):
        gs.apply_label_corrections((X, torch.tensor([0, 1, 1, 0])), tmp_path / "missing.csv")


def test_class_names_of_a_data_set(tmp_path: Path) -> None:
    class Photographs(torch.utils.data.Dataset):
        classes = ("cat", "=dog")

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            return X[index], index % 2

    path = tmp_path / "reviewed.csv"
    path.write_text("sample,label\n0,'=dog\n3,cat\n")
    corrected = gs.apply_label_corrections(Photographs(), path)
    assert corrected.y.tolist() == [1, 1, 0, 0] and corrected.class_names == ("cat", "=dog")


def test_an_empty_cell_keeps_the_label_where_a_class_has_no_name(tmp_path: Path) -> None:
    targets = numpy.array(["", "cat", "", "cat"])
    corrected = apply(tmp_path, "sample,label\n0,\n1,(empty)\n2,cat\n3,\n", targets)
    assert names(corrected) == ["", "", "cat", "cat"]


def test_a_list_of_a_frame_comes_back_to_the_frame(tmp_path: Path) -> None:
    kinds = ["", "drop"] * 40
    frame = pandas.DataFrame(
        {"size": [1.0, 5.0] * 40, "wood": ["hard", "soft", "soft"] * 26 + ["hard"] * 2}
    )
    frame["size"] += numpy.random.default_rng(0).normal(size=80)
    frame["kind"] = ["drop", *kinds[1:]]
    frame = frame.set_index(pandas.Index(range(180, 100, -1)))
    issues = gs.find_label_issues(None, frame, target="kind")
    issues.to_csv(tmp_path / "list.csv")
    table = pandas.read_csv(tmp_path / "list.csv", dtype=str, keep_default_na=False)
    assert table["sample"][0] == "0" and table["suggested"][0] == "(empty)"
    table.loc[0, "label"] = table["suggested"][0]
    table.sample(frac=1, random_state=0).to_csv(tmp_path / "list.csv", index=False)
    pair = (frame[["size", "wood"]], frame["kind"])
    corrected = gs.apply_label_corrections(pair, tmp_path / "list.csv")
    pandas.testing.assert_frame_equal(corrected[0], pair[0])
    assert corrected[1].tolist() == kinds
    table = gs.apply_label_corrections(frame, tmp_path / "list.csv", target="kind")
    pandas.testing.assert_frame_equal(table, frame.assign(kind=kinds))
    with pytest.raises(InvalidInput, match="target='label'"):
        gs.apply_label_corrections(frame[["size"]], tmp_path / "list.csv")


@pytest.mark.parametrize(
    "text",
    [
        "Sample;Label\n1;CAT\n",
        '" sample ", LABEL\n1,Cat \n',
        "sep=;\nSAMPLE;label\n1,0;cat\n",
        "label\tsample\ncat\t1.0\n",
    ],
)
def test_lists_as_spreadsheet_programs_save_them(tmp_path: Path, text: str) -> None:
    targets = numpy.array(["cat", "Dog", "dog", "cow"])
    assert names(apply(tmp_path, text, targets))[1] == "cat"


@pytest.mark.parametrize(("word", "left"), [("Drop", 3), ("DROP", 3), ("(Drop)", 3)])
def test_the_case_of_drop_does_not_matter(tmp_path: Path, word: str, left: int) -> None:
    assert len(apply(tmp_path, f"sample,label\n1,{word}\n", torch.tensor([0, 1, 1, 0]))) == left
    targets = numpy.array(["drop", "a", "b", "a"])
    corrected = apply(tmp_path, f"sample,label\n1,{word}\n", targets)
    assert names(corrected) == (["drop", "b", "a"] if "(" in word else ["drop", "drop", "b", "a"])


def test_words_that_may_mean_several_classes_are_refused(tmp_path: Path) -> None:
    targets = numpy.array(["cat", "Dog", "dog", "Drop"])
    assert names(apply(tmp_path, "sample,label\n0,dog\n", targets))[0] == "dog"
    for word in ("DOG", "DROP"):
        with pytest.raises(InvalidInput, match="2: got the label"):
            apply(tmp_path, f"sample,label\n0,{word}\n", targets)
    with pytest.raises(InvalidInput, match="column of each name"):
        apply(tmp_path, "Sample,SAMPLE,label\n0,1,dog\n", targets)


def test_classes_that_are_numbers_as_text(tmp_path: Path) -> None:
    targets = numpy.array(["007", "1.5", "10", "007"])
    text = "sample;label\n2;7\n0;1,5\n3;10.0\n"
    assert names(apply(tmp_path, text, targets)) == ["1.5", "1.5", "007", "10"]


def test_decimal_commas_beside_semicolons(tmp_path: Path) -> None:
    targets = torch.arange(4.0)[:, None]
    corrected = apply(tmp_path, "sample;label\n1,0;-2,5\n2;1,25\n", targets)
    assert corrected.y.flatten().tolist() == [0, -2.5, 1.25, 3]
    for text in ('sample,label\n1,"2,500"\n', "sample;label\n1;1.500,5\n"):
        with pytest.raises(InvalidInput, match="a number is needed"):
            apply(tmp_path, text, targets)


def test_targets_are_written_as_passed(tmp_path: Path) -> None:
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    prices = (x.sum(1) * 100).round() / 10 + 600
    prices[5] = 629.4
    gs.find_label_issues(None, (x, prices)).to_csv(tmp_path / "list.csv")
    table = pandas.read_csv(tmp_path / "list.csv", dtype=str).set_index("sample")
    assert table["given"]["5"] == "629.4" and table["given"].str.len().max() <= 6


@pytest.mark.parametrize(
    ("labels", "cell", "expected"),
    [
        (["cat", "dog", "cat", "dog"], "DOG", "dog"),
        ([3, 7, 3, 7], "7.0", 7),
        ([True, False, True, False], "false", False),
        (pandas.Categorical(["b", "a", "b", "a"], categories=["c", "b", "a"]), "c", "c"),
        ([1.25, 629.4, 3.1, 4.7], "2.5", 2.5),
        ([f"${number}.50" for number in range(1000, 1080)], "2.5", 2.5),
    ],
)
def test_a_table_comes_back_as_a_table(
    tmp_path: Path, labels: Any, cell: str, expected: object
) -> None:
    frame = pandas.DataFrame(
        {"size": [1.5, 2.5, 9.0, 4.0] * 20, "wood": ["oak", None, "ash", "ash"] * 20}
    )
    frame["y"] = pandas.concat([pandas.Series(labels)] * (80 // len(labels)), ignore_index=True)
    frame = frame.set_axis(range(200, 120, -1))
    before = frame.copy()
    path = tmp_path / "reviewed.csv"
    path.write_text(f"sample,label\n0,{cell}\n5,drop\n")
    corrected = gs.apply_label_corrections(frame, path, target="y")
    pandas.testing.assert_frame_equal(frame, before)
    assert corrected["y"].iloc[0] == expected
    assert list(corrected.index) == [row for row in frame.index if row != 195]
    unchanged = ["size", "wood"]
    pandas.testing.assert_frame_equal(corrected[unchanged], frame.drop(index=195)[unchanged])
    if not str(frame["y"].iloc[0]).startswith("$"):
        assert corrected["y"].dtype == frame["y"].dtype
        assert corrected["y"].iloc[1:].tolist() == frame["y"].drop(index=[200, 195]).tolist()


SIZES = [float(k) for k in range(40)]


@pytest.mark.parametrize("labels", [["a", "b"] * 20, [3, 7] * 20, [0.25 * k for k in range(40)]])
@pytest.mark.parametrize("form", [list, numpy.array, torch.tensor, tuple, pandas.Series])
def test_data_come_back_in_the_form_in_which_they_were_passed(
    tmp_path: Path, labels: list[Any], form: Any
) -> None:
    if form is torch.tensor and isinstance(labels[0], str):
        form = list
    path = tmp_path / "reviewed.csv"
    path.write_text(f"sample,label\n0,{labels[3]}\n5,drop\n")
    expected = [labels[3], *labels[1:5], *labels[6:]]
    column = form(labels)
    mapping = gs.apply_label_corrections({"size": SIZES, "y": column}, path, target="y")
    pair = gs.apply_label_corrections((pandas.DataFrame({"size": SIZES}), column), path)
    assert isinstance(mapping, dict) and isinstance(pair, tuple)
    for sizes, corrected in ((mapping["size"], mapping["y"]), (pair[0]["size"], pair[1])):
        assert list(sizes) == SIZES[:5] + SIZES[6:]
        assert type(corrected) is type(column) and list(corrected) == expected
        assert getattr(corrected, "dtype", None) == getattr(column, "dtype", None)
    rows = [{"size": size, "y": label} for size, label in zip(SIZES, labels, strict=True)]
    again = gs.apply_label_corrections(rows, path, target="y")
    assert [row["y"] for row in again] == expected and rows[0]["y"] == labels[0]


@pytest.mark.parametrize("form", [range, deque, pyarrow.array])
def test_other_columns_of_a_mapping_lose_dropped_rows(tmp_path: Path, form: Any) -> None:
    column = range(40) if form is range else form(list(range(40)))
    path = tmp_path / "reviewed.csv"
    path.write_text("sample,label\n5,drop\n")
    data = {"x": column, "y": tuple("ab" * 20)}
    corrected = gs.apply_label_corrections(data, path, target="y")
    assert [int(str(cell)) for cell in corrected["x"]] == [*range(5), *range(6, 40)]


def test_rows_without_a_label_stay_in_the_table(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"size": [1.0, 2.0, 3.0, 4.0] * 10, "y": [0, 1, -100, 1] * 10})
    path = tmp_path / "reviewed.csv"
    path.write_text("sample,label\n3,0\n4,drop\n")
    corrected = gs.apply_label_corrections(frame, path, target="y")
    assert corrected["y"].tolist()[:5] == [0, 1, -100, 0, 1] and len(corrected) == 39


KINDS = ["a", "b", "c", "naïve"] * 10
TABLE = pandas.DataFrame({"size": [float(k) for k in range(40)], "kind": KINDS})


def list_of(path: Path, given: list[Any], label: list[Any], **columns: list[Any]) -> Path:
    samples = {"sample": range(len(given)), **columns, "given": given, "label": label}
    pandas.DataFrame(samples).to_csv(path, index=False)
    return path


@pytest.mark.parametrize(
    "labels",
    [["b", *[""] * 39], ["drop", *[""] * 39], [*[""] * 39, "drop"], ["c", "a", *[""] * 38]],
)
def test_a_list_of_another_order_is_refused(tmp_path: Path, labels: list[str]) -> None:
    reviewed = list_of(tmp_path / "list.csv", KINDS, labels)
    corrected = gs.apply_label_corrections(TABLE, reviewed, target="kind")
    assert len(corrected) == 40 - labels.count("drop")
    swapped = TABLE.replace({"kind": {"a": "b", "b": "a"}})
    for other in (TABLE[::-1], TABLE[:20], TABLE[1:], swapped):
        with pytest.raises(InvalidInput, match="the list was made"):
            gs.apply_label_corrections(other, reviewed, target="kind")
    with pytest.raises(InvalidInput, match=r"line 2: .* 'a', these data have 'naïve' .and 39 more"):
        gs.apply_label_corrections(TABLE[::-1], reviewed, target="kind")


def test_a_list_can_be_applied_twice(tmp_path: Path) -> None:
    reviewed = list_of(tmp_path / "list.csv", KINDS, ["b", "", "a", *[""] * 37])
    once = gs.apply_label_corrections(TABLE, reviewed, target="kind")
    twice = gs.apply_label_corrections(once, reviewed, target="kind")
    assert once["kind"].tolist()[:3] == ["b", "b", "a"]
    pandas.testing.assert_frame_equal(once, twice)


@pytest.mark.parametrize(
    ("targets", "given", "other"),
    [
        (
            numpy.array(["007", "1.5", "7", "007"]),
            ["7", "1.50", "7", "7.0"],
            ["8", "1.5", "7", "7"],
        ),
        (numpy.array([True, False] * 2), ["TRUE", "false"] * 2, ["FALSE", "TRUE"] * 2),
        (torch.tensor([0, 1, 1, 0]), ["0.0", "1", "TRUE", ""], [0, 1, 1, 2]),
        (
            torch.tensor([629.4, 1 / 3, -2.0, 1e9]),
            ["629.40", "0.333", "-2", "1E+09"],
            [629.3, 0, 0, 0],
        ),
        (
            numpy.array(["", "a", "", "a"]),
            ["(empty)", "A ", "", "a"],
            ["(empty)", "(empty)", "a", "a"],
        ),
    ],
)
def test_given_labels_are_read_as_spreadsheets_write_them(
    tmp_path: Path, targets: Any, given: list[Any], other: list[Any]
) -> None:
    path = list_of(tmp_path / "list.csv", given, [""] * 4)
    assert len(gs.apply_label_corrections((X, targets), path)) == 4
    list_of(path, other, [""] * 4)
    with pytest.raises(InvalidInput, match="another order"):
        gs.apply_label_corrections((X, targets), path)


def test_lists_of_several_labels_are_compared(tmp_path: Path) -> None:
    tags = torch.tensor([[0, 1], [1, 1], [0, 0], [1, 0]])
    path = list_of(tmp_path / "list.csv", [0, 1, 0, 1], ["", 0, "", ""], output=["0"] * 4)
    corrected = gs.apply_label_corrections((X, tags), path)
    assert corrected.y[:, 0].tolist() == [0, 0, 0, 1]
    assert gs.apply_label_corrections((X, corrected.y), path).y.tolist() == corrected.y.tolist()
    with pytest.raises(InvalidInput, match=r"line 2: .* '0', these data have 1"):
        gs.apply_label_corrections((X, tags.flip(0)), path)


def test_accents_of_one_or_two_characters_are_equal(tmp_path: Path) -> None:
    decomposed = [unicodedata.normalize("NFD", kind) for kind in KINDS]
    path = list_of(tmp_path / "list.csv", decomposed, [decomposed[3], *[""] * 39])
    corrected = gs.apply_label_corrections(TABLE, path, target="kind")
    assert corrected["kind"][0] == KINDS[3] != decomposed[3]


def test_a_list_that_is_no_whole_parquet_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "list.parquet"
    path.write_bytes(b"PAR1\0\0\0")
    with pytest.raises(GapscopeError, match="a whole Parquet file"):
        gs.apply_label_corrections(TABLE, path, target="kind")


@pytest.mark.parametrize("words", [("no", "yes"), ("N", "Y"), ("False", "True"), ("a", "b")])
def test_several_labels_that_are_words(tmp_path: Path, words: tuple[str, str]) -> None:
    tags = pandas.DataFrame({"p": [words[1], words[0]] * 2, "q": [words[1]] * 2 + [words[0]] * 2})
    path = list_of(
        tmp_path / "list.csv", [1, words[0], "", 0], [0, words[1], words[0], ""], output=[*"ppqp"]
    )
    corrected = gs.apply_label_corrections((X.numpy(), tags), path)
    assert corrected.y.tolist() == [[0, 1], [1, 1], [1, 0], [0, 0]]
    assert corrected.class_names == words


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_list_of_targets_can_be_applied_twice(tmp_path: Path, dtype: torch.dtype) -> None:
    targets = torch.tensor([1.5, 2.5, 3.5, 4.5], dtype=dtype)
    path = list_of(tmp_path / "list.csv", targets.tolist(), [3.3, "", "", ""])
    once = gs.apply_label_corrections((X, targets), path)
    assert torch.equal(gs.apply_label_corrections(once, path).y, once.y)


@pytest.mark.parametrize(
    ("target", "given", "other"),
    [
        ("2021-05-06", "06/05/2021", "07/05/2021"),
        ("4006381333931", "4.00638E+12", "4.00639E+12"),
        ("a\r\nb", "a\nb", "a\nc"),
        (0.1, "10.00%", "11.00%"),
        (1251.5, "$1,251.50", "$1,252.50"),
        (12515.0, "12.515,0", "12.516,0"),
        (1.25e9, "1,25E+09", "1,26E+09"),
    ],
)
def test_given_cells_that_a_spreadsheet_rewrote(
    tmp_path: Path, target: Any, given: str, other: str
) -> None:
    targets = numpy.array([target, "b", "c", "d"]) if isinstance(target, str) else None
    if targets is None:
        targets = torch.tensor([target, 2.5, 3.5, 4.5], dtype=torch.float64)
    path = tmp_path / "list.csv"
    path.write_text(f'sample;label;given\n0;;"{given}"\n')
    assert len(gs.apply_label_corrections((X, targets), path)) == 4
    path.write_text(f'sample;label;given\n0;;"{other}"\n')
    with pytest.raises(InvalidInput, match="another order"):
        gs.apply_label_corrections((X, targets), path)


def test_a_rewritten_column_of_given_labels_can_be_deleted(tmp_path: Path) -> None:
    path = list_of(tmp_path / "list.csv", ["a", "b", "b", "01. Mai"], [""] * 4)
    with pytest.raises(InvalidInput, match="delete that column"):
        gs.apply_label_corrections((X, numpy.array([*"abb", "1.5."])), path)


@pytest.mark.parametrize("cell", ["2E+03", "2,00E+03"])
def test_integer_labels_with_exponents(tmp_path: Path, cell: str) -> None:
    samples = gs.Samples(X, torch.tensor([0, 2000, 0, 2000]))
    path = tmp_path / "list.csv"
    path.write_text(f"sample;label\n0;{cell}\n")
    assert gs.apply_label_corrections(samples, path).y.tolist() == [2000, 2000, 0, 2000]


def test_a_table_and_its_file_get_the_most_frequent_spelling_of_a_class(tmp_path: Path) -> None:
    labels = ["1"] * 10 + ["2"] * 10 + [1]  # one class, of which the last row has a number
    frame = pandas.DataFrame({"a": range(21), "label": labels})
    (tmp_path / "list.csv").write_text("sample,label\n12,1\n")
    table = gs.apply_label_corrections(frame, tmp_path / "list.csv", target="label")
    assert table["label"].tolist()[12] == "1"
    frame.to_json(tmp_path / "table.jsonl", orient="records", lines=True)
    done = gapscope(
        "correct", tmp_path / "table.jsonl", tmp_path / "list.csv", tmp_path / "new.jsonl"
    )
    assert done.returncode == 0, done.stderr
    assert '"label":"1"' in (tmp_path / "new.jsonl").read_text().splitlines()[12]


def test_lists_of_two_reviewers_are_applied_together(tmp_path: Path) -> None:
    blank = dict.fromkeys(range(40), "")
    first, second, third = (
        list_of(tmp_path / f"list {k}.csv", KINDS, list((blank | labels).values()))
        for k, labels in enumerate(({0: "b", 1: "a"}, {0: "b", 5: "drop"}, {0: "c", 1: "a"}))
    )
    corrected = gs.apply_label_corrections(TABLE, [first, second], target="kind")
    assert corrected["kind"].tolist() == ["b", "a", *KINDS[2:5], *KINDS[6:]]
    with pytest.raises(InvalidInput, match=r"sample 0 .'b' in .*0.csv, 'c' in .*2.csv"):
        gs.apply_label_corrections(TABLE, [first, third], target="kind")
    once = gs.apply_label_corrections(TABLE, first, target="kind")
    with pytest.raises(InvalidInput, match="several lists of them"):
        gs.apply_label_corrections(once, third, target="kind")


def test_lists_of_several_labels_are_applied_together(tmp_path: Path) -> None:
    data = (X, torch.tensor([[0, 1], [1, 1], [1, 0], [0, 0]]))
    paths = [tmp_path / name for name in ("a.csv", "b.csv", "c.csv")]
    for path, (output, label) in zip(paths, ((0, 1), (1, 0), (1, 1)), strict=True):
        path.write_text(f"sample,output,label\n0,{output},{label}\n")
    corrected = gs.apply_label_corrections(data, paths[:2])
    assert corrected.y.long().tolist() == [[1, 0], [1, 1], [1, 0], [0, 0]]
    with pytest.raises(InvalidInput, match="sample 0, place 1"):
        gs.apply_label_corrections(data, paths[1:])


def test_a_second_list_is_never_applied_to_the_rows_that_a_first_one_left(tmp_path: Path) -> None:
    x, y = torch.randn(12, 2), torch.arange(12) % 3
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    first.write_text("sample,given,label\n2,2,drop\n")
    for row in (5, 11):
        second.write_text(f"sample,given,label\n{row},2,1\n")
        left = gs.apply_label_corrections((x, y), first)
        with pytest.raises(InvalidInput, match="path=") as caught:
            gs.apply_label_corrections(left, second)
        assert "lists of them together" in str(caught.value)
        both = gs.apply_label_corrections((x, y), [first, second])
        assert len(both) == 11 and both.y[row - 1] == 1


class Items(torch.utils.data.Dataset[dict[str, Any]]):
    """Items with labels of any type."""

    def __init__(self, label: Any) -> None:
        self.label = label

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index not in range(40):
            raise IndexError
        return {"size": torch.tensor(float(index)), "y": self.label(index)}


@pytest.mark.parametrize(
    "label", [lambda k: k % 2, lambda k: torch.tensor(k % 2), lambda k: numpy.int32(k % 2)]
)
def test_items_of_a_data_set_come_back_with_other_labels(tmp_path: Path, label: Any) -> None:
    path = tmp_path / "list.csv"
    path.write_text("sample,label\n0,1\n5,drop\n")
    data = Items(label)
    corrected = gs.apply_label_corrections(data, path, target="y")
    rows = [*range(5), *range(6, 40)]
    assert [int(item["size"]) for item in corrected] == rows
    assert [int(item["y"]) for item in corrected] == [1, *(k % 2 for k in rows[1:])]
    assert type(corrected[0]["y"]) is type(data[0]["y"]) and data[0]["y"] == 0
    batch = next(iter(torch.utils.data.DataLoader(corrected, batch_size=39)))
    assert batch["y"].dtype == next(iter(torch.utils.data.DataLoader(data)))["y"].dtype


@pytest.mark.parametrize("names", [["a", "b", "c"], None])
@pytest.mark.parametrize("form", ["plain", "torch", "transform", "relabelled"])
def test_a_hugging_face_data_set_comes_back_with_its_features(
    tmp_path: Path, names: Any, form: str
) -> None:
    datasets = pytest.importorskip("datasets")
    path = tmp_path / "list.csv"
    path.write_text(
        "sample,label\n0,1\n5,drop\n" if names is None else "sample,label\n0,b\n5,drop\n"
    )
    kind = datasets.Value("int8") if names is None else datasets.ClassLabel(names=names)
    features = datasets.Features({"y": kind, "size": datasets.Value("float32")})
    data = datasets.Dataset.from_dict({"y": [0, 1] * 20, "size": SIZES}, features=features)
    if form == "torch":
        data = data.with_format("torch")
    shift = int(form == "relabelled" and names is None)
    if form in ("transform", "relabelled"):
        data = data.with_transform(
            lambda rows: {
                "double": [2 * size for size in rows["size"]],
                "y": [label ^ shift for label in rows["y"]],
            }
        )
    corrected = gs.apply_label_corrections(data, path, target="y")
    if not shift:
        assert corrected.features == features and corrected.column_names == data.column_names
    rows = [*range(5), *range(6, 40)]
    assert [int(row["y"]) for row in corrected] == [1, *((k % 2) ^ shift for k in rows[1:])]
    inputs = {*data[0]} - {"y"}
    for name in inputs:
        assert [float(row[name]) for row in corrected] == [float(data[k][name]) for k in rows]
    assert data[0]["y"] == shift


def test_corrected_amounts_are_not_rounded(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_text("sample,label\n0,3.25\n")
    amounts = numpy.arange(40) * 1000 + 629
    mapping = gs.apply_label_corrections({"size": SIZES, "y": amounts}, path, target="y")
    items = gs.apply_label_corrections(Items(lambda k: amounts[k]), path, target="y")
    assert mapping["y"][0] == items[0]["y"] == 3.25


def test_other_forms_name_the_samples_that_come_back(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_text("sample,label\n0,1\n")
    rows = numpy.zeros(40, dtype=[("size", "f4"), ("wood", "f4"), ("y", "i8")])
    rows["y"], rows["size"] = numpy.arange(40) % 2, SIZES
    corrected = gs.apply_label_corrections(rows, path, target="y")
    assert corrected.y[0] == 1 and "ndarray comes back" in corrected.notes[-1]


@pytest.mark.parametrize("n_rows", ["12", "12.0", ""])
def test_a_list_of_other_rows_is_refused(tmp_path: Path, n_rows: str) -> None:
    x, y = torch.randn(12, 2), torch.arange(12) % 3
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    first.write_text("sample,label\n2,drop\n")
    left = gs.apply_label_corrections((x, y), first)
    # where the rows are shifted, the label of the list is that of the data
    second.write_text(f"sample,given,label,n_rows\n5,2,0,{n_rows}\n6,0,1,{n_rows}\n")
    with pytest.raises(InvalidInput, match="path="):
        gs.apply_label_corrections(left, second)
    both = gs.apply_label_corrections((x, y), [first, second])
    assert both.y.tolist() == [0, 1, 0, 1, 0, 1, *left.y.tolist()[6:]]
    # or its given label
    second.write_text(f"sample,given,label,n_rows\n5,0,1,{n_rows or 12}\n")
    with pytest.raises(InvalidInput, match="made for 12"):
        gs.apply_label_corrections(left, second)


def test_lists_have_the_number_of_rows_of_their_data(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(60, 2), torch.arange(60) % 2
    y[5] = -100
    issues = gs.find_label_issues(None, (x, y))
    issues.to_csv(tmp_path / "list.csv")
    assert set(pandas.read_csv(tmp_path / "list.csv")["n_rows"]) == {60}
    issues.write_html(tmp_path / "issues.html")
    page = (tmp_path / "issues.html").read_text()
    assert "given,label,n_rows" in page and "cell(input.value), '60']" in page
    assert len(gs.apply_label_corrections((x, y), tmp_path / "list.csv")) == 59
    with pytest.raises(InvalidInput, match="made for 60"):
        gs.apply_label_corrections((x[1:], y[1:]), tmp_path / "list.csv")
