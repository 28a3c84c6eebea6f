"""Raw tables as numbers."""

from __future__ import annotations

from typing import Any

import numpy
import pandas
import pytest

from gapscope.base.errors import InvalidInput
from gapscope.data.frames import WORDS, encode_frame, encode_inputs, split_frame


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
    with pytest.raises(InvalidInput, match=r"'a' .*infinity in rows 3"):
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
