"""Tables of other libraries as data: names of columns, order of categories and types stay."""

from __future__ import annotations

from typing import Any

import numpy
import pandas
import pytest
import torch
from scipy.sparse import csr_array

import gapscope as gs
from gapscope.accuracy.row_selection import as_rows
from gapscope.base.errors import InvalidInput
from gapscope.base.foreign_data import as_frame, hashed_words, with_spaces
from gapscope.base.samples import as_samples
from gapscope.base.second_data import as_second

FRAME = pandas.DataFrame(numpy.random.default_rng(0).normal(size=(12, 3)), columns=list("abc"))
LABELS = numpy.arange(12) % 2
LIBRARIES = ("pandas", "polars", "pyarrow")


def _table(library: str, frame: pandas.DataFrame = FRAME) -> Any:
    """Return a frame as a table of a library."""
    if library == "pandas":
        return frame
    module: Any = pytest.importorskip(library)
    if library == "polars":
        return module.DataFrame(frame.to_dict("list"))
    return module.Table.from_pandas(frame)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("other", LIBRARIES)
def test_columns_of_a_second_table_are_matched_by_name(library: str, other: str) -> None:
    first = as_samples((_table(library), LABELS))
    second = as_second((_table(other, FRAME[["c", "a", "b"]]), LABELS), first)
    assert torch.equal(first.inputs, second.inputs) and second.columns == ("a", "b", "c")
    with pytest.raises(InvalidInput, match="c and has z"):
        as_second((_table(other, FRAME.rename(columns={"c": "z"})), LABELS), first)


@pytest.mark.parametrize("library", LIBRARIES)
def test_columns_of_second_targets_are_matched_by_name(library: str) -> None:
    targets = pandas.DataFrame({"p": LABELS, "q": numpy.arange(12) % 3 % 2})
    targets["r"] = 1 - targets["q"] * targets["p"]
    first = as_samples((FRAME, _table(library, targets)))
    second = as_second((FRAME, _table(library, targets[["r", "p", "q"]])), first)
    assert first.kind == "multi-label" and torch.equal(first.y, second.y)


def test_categories_keep_their_order() -> None:
    polars = pytest.importorskip("polars")
    words = ["mid", "high", "low", "mid"]
    order = polars.Enum(["low", "mid", "high"])
    samples = as_samples((numpy.eye(4), polars.Series(words, dtype=order)))
    assert samples.class_names == ("low", "mid", "high") and samples.y.tolist() == [1, 2, 0, 1]
    held = gs.out_of_sample(None, (FRAME, polars.Series(words * 3, dtype=order)))
    assert held.classes == ("low", "mid", "high")


def test_cells_keep_their_types() -> None:
    polars: Any = pytest.importorskip("polars")
    rows = [[1.0, 2.0], [3.0, 4.0]]
    vectors = polars.Series("v", rows, dtype=polars.Array(polars.Float32, 2))
    assert as_samples((vectors, [0, 1])).inputs.tolist() == rows
    assert [cell.tolist() for cell in as_frame(polars.DataFrame([vectors]))["v"]] == rows
    missing = as_frame(polars.Series("b", [True, None]))
    assert missing.name == "b" and missing.isna().tolist() == [False, True]
    assert as_frame(polars.Series([{"a": 1}])).tolist() == [{"a": 1}]
    with pytest.raises(InvalidInput, match="of 2 are missing"):
        as_samples((numpy.eye(2), polars.Series(["a", None])))


@pytest.mark.parametrize("library", ("polars", "pyarrow"))
def test_rows_beside_a_shuffled_frame_are_matched_by_position(library: str) -> None:
    shuffled = FRAME.sample(frac=1, random_state=0)
    labels = _table(library, pandas.DataFrame({"y": LABELS}))["y"]
    assert as_samples((shuffled, labels)).y.tolist() == LABELS.tolist()
    series = pandas.Series(LABELS, shuffled.index)
    assert as_samples((_table(library, FRAME), series)).y.tolist() == LABELS.tolist()


def test_texts_of_a_column_are_hashed() -> None:
    polars = pytest.importorskip("polars")
    texts = ["the cat sat", "a dog ran"]
    assert torch.equal(
        as_samples((polars.Series(texts), [0, 1])).inputs, as_samples((texts, [0, 1])).inputs
    )


def test_columns_that_are_only_missing_or_only_new_are_named() -> None:
    first = as_samples((FRAME, LABELS))
    with pytest.raises(InvalidInput, match=r"it lacks c\. "):
        as_second((FRAME[["a", "b"]], LABELS), first)
    second = as_second((FRAME.assign(d=1.0), LABELS), first)
    assert torch.equal(second.inputs, first.inputs)
    assert any("d: not used" in note for note in second.notes)


@pytest.mark.parametrize("missing", [None, float("nan"), pandas.NA])
def test_a_missing_text_is_named_in_every_kind_of_column(missing: Any) -> None:
    for dtype in ("object", "string"):
        texts = pandas.Series(["a b", missing, "c d"], dtype=dtype)
        with pytest.raises(InvalidInput, match="1 of 3 are"):
            as_samples((texts, [0, 1, 0]))


@pytest.mark.parametrize("other", [3, 1.5, b"c d"])
def test_an_entry_that_is_no_text_is_named(other: Any) -> None:
    with pytest.raises(InvalidInput, match="that of row 1"):
        as_samples((["a b", other, "c d"], [0, 1, 0]))


def test_letter_pairs_are_words_where_a_script_has_no_spaces() -> None:
    assert with_spaces("plain words, 12 Änderungen") == "plain words, 12 Änderungen"
    assert with_spaces("今日は good").split() == ["今日", "日は", "good"]
    assert with_spaces("本 กิน").split() == ["本", "กน"]
    first, second, other = hashed_words(["今日は雨です", "明日は雨です", "コーヒーが好き"])
    assert float(first @ second) > 0.3 > abs(float(first @ other))


SPARSE_LABELS: dict[str, Any] = {
    "integers": numpy.arange(60)[:, None] % 3,
    "small integers": (numpy.arange(60)[:, None] % 3).astype("int8"),
    "booleans": numpy.arange(60)[:, None] % 3 == 1,
    "one-hot": numpy.eye(3, dtype=int)[numpy.arange(60) % 3],
    "amounts": numpy.sin(numpy.arange(60.0))[:, None] + 1e6,
}


@pytest.mark.parametrize("kind", SPARSE_LABELS)
def test_sparse_labels_keep_their_type(kind: str) -> None:
    labels = SPARSE_LABELS[kind]
    x = numpy.random.default_rng(0).normal(size=(60, 3))
    sparse: Any = csr_array(labels)
    for data in ((x, sparse), {"x": x, "label": sparse}):
        found, expected = as_samples(data, is_exact=True), as_samples((x, labels), is_exact=True)
        assert found.kind == expected.kind and torch.equal(found.y, expected.y)
    rows = as_rows((x, sparse)).targets
    assert numpy.array_equal(numpy.reshape(rows, labels.shape), labels)


def test_sparse_inputs_keep_their_digits() -> None:
    x = 1e6 + numpy.random.default_rng(0).normal(size=(60, 3)) / 100
    y = numpy.arange(60) % 3
    exact = as_samples((x, y), is_exact=True)
    found = as_samples((csr_array(x), y), is_exact=True)
    assert torch.equal(found.inputs, exact.inputs) and found.inputs.dtype == torch.float64
    counts = as_samples((csr_array((x > 1e6).astype(int)), y))
    assert counts.inputs.dtype == torch.float32
