"""Raw tables as numbers."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import numpy
import pandas
import pytest

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.data.first_table import WORDS
from gapscope.data.frames import encode_frame, encode_inputs
from gapscope.data.table_targets import split_frame


def test_text_becomes_indicators_and_gaps_are_filled() -> None:
    frame = pandas.DataFrame(
        {"size": [1.0, None, 3.0, 8.0], "colour": ["red", "blue", None, "red"]}
    )
    encoded, notes = encode_frame(frame)
    assert encoded["size"].tolist() == [1, 3, 3, 8]
    assert encoded["colour_red"].tolist() == [1, 0, 0, 1] and encoded["colour_blue"].tolist() == [
        0,
        1,
        0,
        0,
    ]
    assert len(notes) == 2 and "1 missing" in notes[1]
    other, _ = encode_frame(pandas.DataFrame({"size": [2.0], "colour": ["green"]}), like=encoded)
    assert [*other.columns] == [*encoded.columns] and other.iloc[0].tolist() == [2, 0, 0]


def test_names_of_rows_are_dropped() -> None:
    frame = pandas.DataFrame(
        {"name": [f"row {k}" for k in range(30)], "size": [k * k for k in range(30)]}
    )
    encoded, notes = encode_frame(frame)
    assert [*encoded.columns] == ["size"] and "name" in notes[0]


def test_the_target_is_a_column() -> None:
    frame = pandas.DataFrame({"size": [1.0, 2.0], "price": [3.0, 4.0]})
    columns, target = split_frame(frame, "price")
    assert [*columns.columns] == ["size"] and target.tolist() == [3, 4]
    with pytest.raises(InvalidInput, match="price"):
        split_frame(frame, "prices")
    with pytest.raises(InvalidInput, match="list"):
        split_frame([1, 2], "price")
    with pytest.raises(InvalidInput, match="alone"):
        split_frame(frame[["price"]], "price")


def texts(first: int = 0) -> pandas.DataFrame:
    words = [f"word{k} and word{k + 1}" for k in range(first, first + 30)]
    return pandas.DataFrame({"id": range(first, first + 30), "text": words})


def test_texts_beside_nothing_but_identifiers_become_frequencies_of_words() -> None:
    encoded, notes = encode_frame(texts())
    assert [*encoded.columns] == WORDS and "id" in notes[0] and "text: read as" in notes[1]
    again, _ = encode_frame(encoded)
    assert again is encoded
    second, _ = encode_frame(texts(5), like=encoded)
    assert second.iloc[:25].to_numpy().tolist() == encoded.iloc[5:].to_numpy().tolist()
    (train, _), (test, _), _ = encode_inputs((texts(), range(30)), (texts(5), range(30)))
    assert train.shape == test.shape == (30, len(WORDS)) and not hasattr(train, "columns")
    gap = texts().drop(columns="id")
    gap.loc[3, "text"] = None
    assert not encode_frame(gap)[0].iloc[3].any()


def test_arrow_tables_are_encoded_as_frames() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"size": [1.0, None, 3.0], "colour": ["red", "blue", "red"]})
    (encoded, _), _, notes = encode_inputs((pyarrow.Table.from_pandas(frame), [0, 1, 0]))
    assert encoded.equals(encode_frame(frame)[0]) and len(notes) == 2
    assert split_frame(pyarrow.Table.from_pandas(frame), "colour")[1].tolist() == [
        "red",
        "blue",
        "red",
    ]


def test_polars_tables_are_encoded_as_frames() -> None:
    polars = pytest.importorskip("polars")
    columns = {"size": [1.0, None, 3.0], "colour": ["red", "blue", "red"]}
    expected = encode_frame(pandas.DataFrame(columns))[0]
    for table in (polars.DataFrame(columns), polars.LazyFrame(columns)):
        (encoded, _), _, _ = encode_inputs((table, [0, 1, 0]))
        assert encoded.equals(expected)


def test_empty_columns_are_refused() -> None:
    with pytest.raises(InvalidInput, match="empty"):
        encode_frame(pandas.DataFrame({"text": [None] * 30}))


def test_infinite_numbers_are_refused_by_column_and_row() -> None:
    frame = pandas.DataFrame({"a": [1.0, 2.0, numpy.inf], "b": [1.0, 2.0, 3.0]})
    with pytest.raises(InvalidInput, match=r"'a' .*infinity .* 3"):
        encode_frame(frame)


@pytest.mark.parametrize(
    ("dtype", "cells"),
    [("boolean", [True, None, True]), ("Int64", [1, None, 2]), ("Float32", [0.5, None, 1.5])],
)
@pytest.mark.parametrize("name", ["a", 0])
def test_gaps_of_nullable_numbers_are_filled(dtype: Any, cells: Any, name: str | int) -> None:
    frame = pandas.DataFrame({name: pandas.Series(cells, dtype=dtype), "b": [1.0, 2.0, 3.0]})
    encoded, notes = encode_frame(frame)
    known = [float(cell) for cell in cells if cell is not None]
    assert encoded[name].tolist() == [known[0], sum(known) / 2, known[1]]
    assert any("1 missing number" in note for note in notes)
    second, _ = encode_frame(frame, like=encoded)
    assert second[name].tolist() == encoded[name].tolist()


def second(first: pandas.DataFrame, other: pandas.DataFrame) -> pandas.DataFrame:
    """The second table, encoded as the first."""
    return encode_frame(other, like=encode_frame(first)[0])[0]


def test_a_second_table_is_read_by_the_columns_of_the_first_whatever_their_names() -> None:
    first = pandas.DataFrame(
        {"size": ["s", "l"] * 20, "size_mm": numpy.arange(40.0) % 7, "x": [1.0, 2.0] * 20}
    )
    with pytest.raises(InvalidInput, match="lacks size_mm"):
        second(first, first.drop(columns="size_mm"))
    # the column of a value may have the name of another column
    first["size"] = ["mm", "l"] * 20
    assert second(first, first.iloc[::2]).to_numpy().tolist() == [
        [k % 7, 1.0, 0.0, 1.0] for k in range(0, 40, 2)
    ]
    twins = pandas.DataFrame({"a": ["b_c", "d"], "a_b": ["c", "e"]})
    other = pandas.DataFrame({"a_b": ["e"], "a": ["b_c"]})
    assert second(twins, other).to_numpy().tolist() == [[1.0, 0.0, 0.0, 1.0]]


FIRST = pandas.DataFrame({"s": ["1", "b"] * 6, "n": numpy.arange(12.0) % 5, "f": [True, False] * 6})
SECOND: dict[str, tuple[dict[str, Any], list[float]]] = {
    "all missing": ({"s": [numpy.nan] * 12}, [0.0, 1.0, 0.0, 0.0]),
    "numbers for text": ({"s": [1.0] * 12}, [0.0, 1.0, 1.0, 0.0]),
    "text for booleans": ({"f": ["true", "False"] * 6}, [0.0, 1.0, 1.0, 0.0]),
    "integers for booleans": ({"f": [1, 0] * 6}, [0.0, 1.0, 1.0, 0.0]),
    "text for numbers": ({"n": [str(k % 5) for k in range(12)]}, [0.0, 1.0, 1.0, 0.0]),
    "objects": ({"n": pandas.Series([k % 5 for k in range(12)], dtype=object)}, [0.0, 1.0, 1.0, 0.0]),
}  # fmt: skip


@pytest.mark.parametrize("name", SECOND)
def test_a_second_table_may_have_other_types(name: str) -> None:
    changes, row = SECOND[name]
    encoded = second(FIRST, FIRST.assign(**changes))
    assert [*encoded.columns] == ["n", "f", "s_1", "s_b"] and encoded.iloc[0].tolist() == row


@pytest.mark.parametrize("cell", ["x", pandas.Timestamp("2024-01-01"), [1.0, 2.0]])
def test_a_column_that_cannot_be_read_as_in_the_first_is_named(cell: Any) -> None:
    with pytest.raises(InvalidInput, match=r"'n' of the second table .*float64"):
        second(FIRST, FIRST.assign(n=[cell] * 12))


def test_values_that_the_first_table_lacks_are_noted() -> None:
    _, notes = encode_frame(FIRST.assign(s="other"), like=encode_frame(FIRST)[0])
    assert len(notes) == 1 and notes[0].startswith("s: ")


def test_columns_that_the_first_table_lacks_are_named() -> None:
    first = FIRST.assign(empty=numpy.nan)  # omitted, but known
    encoded = encode_frame(first)[0]
    values, notes = encode_frame(first.assign(more=1.0)[["more", *first]], like=encoded)
    assert len(notes) == 1 and notes[0].startswith("more: not used")
    assert list(values) == list(encoded)
    with pytest.raises(InvalidInput, match="It has N"):
        encode_frame(FIRST.rename(columns={"n": "N"}), like=encoded)
    texts = pandas.DataFrame({"text": [f"word{k} and word{k + 1}" for k in range(60)]})
    _, notes = encode_frame(texts.assign(more=1.0), like=encode_frame(texts)[0])
    assert any("more: not used" in note for note in notes)


def test_names_of_rows_are_no_columns_of_the_second_table() -> None:
    first = pandas.DataFrame({"name": [f"r{k}" for k in range(60)], "x": [1.0, 2.0, 4.0] * 20})
    assert second(first, first.iloc[:30]).shape == (30, 1)
    assert second(first, first.drop(columns="name")).shape == (60, 1)


@pytest.mark.parametrize(
    "cells",
    [
        pandas.Series([1, 2.5, None, 4], dtype=object),
        pandas.Series([Decimal("1"), Decimal("2.5"), None, Decimal("4")]),
        pandas.Series([True, 2.5, None, numpy.float32(4)], dtype=object),
    ],
)
def test_objects_that_are_numbers_are_numbers(cells: Any) -> None:
    encoded, notes = encode_frame(pandas.DataFrame({"a": cells, "b": [1.0, 2.0, 3.0, 5.0]}))
    assert encoded["a"].tolist() == [1, 2.5, 2.5, 4] and len(notes) == 1


def test_columns_of_objects_score_as_their_numbers() -> None:
    x = numpy.random.default_rng(0).normal(size=(120, 3))
    y = (x[:, 0] > 0).astype(int)
    frame = pandas.DataFrame(x, columns=[*"abc"])
    scores = {
        gs.forecast_accuracy(None, (table, y)).score
        for table in (frame, frame.astype(object), frame.map(lambda cell: Decimal(repr(cell))))
    }
    assert len(scores) == 1
    gs.check(None, (frame, y), test=(frame.astype(object), y))


@pytest.mark.parametrize(
    ("cells", "days", "word"),
    [
        (["2024-01-01", None, "2024-01-03"], [19723, 19724, 19725], "since 1970"),
        (["2024-01-01T12:00Z", "2024-01-02 12:00:00+00:00", "2024-01-01"], [19723.5, 19724.5, 19723], "since 1970"),
        ([datetime.date(2024, 1, 1), datetime.date(2024, 1, 2), None], [19723, 19724, 19723.5], "since 1970"),
        (pandas.PeriodIndex(["2024-01", "2024-02", "2024-01"], freq="M"), [19723, 19754, 19723], "since 1970"),
        (pandas.to_timedelta([1, 2, 3], "D"), [1, 2, 3], "durations"),
        ([datetime.timedelta(1), datetime.timedelta(2), datetime.timedelta(hours=12)], [1, 2, 0.5], "durations"),
    ],
)  # fmt: skip
def test_dates_and_durations_are_days(cells: Any, days: list[float], word: str) -> None:
    frame = pandas.DataFrame({"t": cells, "x": [1.0, 2.0, 4.0]})
    encoded, notes = encode_frame(frame)
    assert encoded["t"].tolist() == days and word in notes[0]
    assert second(frame, frame)["t"].tolist() == days


def test_bytes_are_text_and_complex_numbers_are_refused() -> None:
    encoded, _ = encode_frame(pandas.DataFrame({"a": [b"cat", b"dog"]}))
    assert [*encoded.columns] == ["a_cat", "a_dog"]
    with pytest.raises(InvalidInput, match="complex128"):
        encode_frame(pandas.DataFrame({"a": [1j, 2j]}))


@pytest.mark.parametrize("kind", [int, Decimal])
def test_a_target_of_objects_is_one_of_numbers(kind: Any) -> None:
    for values, dtype in (([0, 1, 2] * 20, "int64"), ([3 * k + 7 for k in range(60)], "float64")):
        cells = pandas.Series([kind(value) for value in values], dtype=object)
        target = split_frame(pandas.DataFrame({"x": 1.5, "y": cells}), "y")[1]
        assert str(target.dtype) == dtype and target.tolist() == values
