"""Raw tables as numbers."""

from __future__ import annotations

import pandas
import pytest

from gapscope.base.errors import InvalidInput
from gapscope.data.frames import encode_frame, split_frame


def test_text_becomes_indicators_and_gaps_are_filled() -> None:
    frame = pandas.DataFrame({"size": [1.0, None, 3.0, 8.0], "colour": ["red", "blue", None, "red"]})
    encoded, notes = encode_frame(frame)
    assert encoded["size"].tolist() == [1, 3, 3, 8]
    assert encoded["colour_red"].tolist() == [1, 0, 0, 1] and encoded["colour_blue"].tolist() == [0, 1, 0, 0]
    assert len(notes) == 2 and "1 missing" in notes[1]
    other, _ = encode_frame(pandas.DataFrame({"size": [2.0], "colour": ["green"]}), like=encoded)
    assert [*other.columns] == [*encoded.columns] and other.iloc[0].tolist() == [2, 0, 0]


def test_names_of_rows_are_dropped() -> None:
    frame = pandas.DataFrame({"name": [f"row {k}" for k in range(30)], "size": range(30)})
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


def test_a_frame_without_numbers_and_categories_is_refused() -> None:
    with pytest.raises(InvalidInput, match="text, of which nearly every row differs"):
        encode_frame(pandas.DataFrame({"text": [f"row {k}" for k in range(30)]}))
    with pytest.raises(InvalidInput, match="empty"):
        encode_frame(pandas.DataFrame({"text": [None] * 30}))
