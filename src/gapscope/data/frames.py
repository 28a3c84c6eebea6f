"""Raw tables as numbers: text as indicators, missing numbers filled, numbers of rows omitted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy

from gapscope.base.errors import InvalidInput, join_names
from gapscope.base.foreign_data import WordFrequencies, as_frame, text_keys_of
from gapscope.base.type_guards import is_list_or_tuple
from gapscope.data.first_table import WORDS, encode_first, encode_words, keep_identity, texts_of
from gapscope.data.named_columns import labelled_table
from gapscope.data.plain_columns import are_numbers, with_plain_columns, with_unique_names
from gapscope.data.table_encoding import KEY, TableEncoding, encoding_of
from gapscope.data.table_targets import NOTE, with_amounts

if TYPE_CHECKING:
    import pandas


def encode_frame(
    frame: pandas.DataFrame,
    *,
    like: pandas.DataFrame | None = None,
    labels: Any = (),
) -> tuple[pandas.DataFrame, tuple[str, ...]]:
    """Return a frame of numbers, and notes about what was changed.

    Text columns become one column per value, those of which nearly every row has a different value are dropped, and
    missing numbers are filled with the median of their column. Columns whose cells are arrays, such as embeddings,
    become a column per number, and columns of one name are numbered. If no other columns are left, they are texts, and
    become frequencies of hashed words. Dates become days since 1970, durations days. Empty columns, and columns that
    number or identify the rows, are omitted: where rows are sorted, such numbers give the label away.

    Args:
        frame: Columns of numbers and text.
        like: Encoded frame of another part of the data, whose columns are returned (see `TableEncoding.apply`).
        labels: Labels of the rows: categories that are copies of them are omitted beside texts alone.

    Raises:
        InvalidInput: No column remains, a number is infinite, or `frame` lacks a column of `like`.
    """
    if list(frame.columns) == WORDS:  # encoded already
        return frame, ()
    _check_no_header(frame)
    # the columns of a second part are those of the first, whatever its own rows look like
    if like is not None:
        encoding = encoding_of(like)
        others = encoding.notes_on_others(frame)
        if encoding.words:
            words, notes = encode_words(encoding.own_columns(frame))
            return words, (*notes, *others)
        encoded, notes = encoding.apply(frame)
        keep_identity(encoded, frame, encoding.dropped)
        return encoded, (*notes, *others)
    return encode_first(frame, labels)


def _check_no_header(frame: pandas.DataFrame) -> None:
    """Raise InvalidInput if a row repeats the names of the columns, as in files that were joined."""
    if frame.shape[1] < 2:
        return
    rows = numpy.ones(len(frame), dtype=bool)
    for k, name in enumerate(frame.columns):
        column = frame.iloc[:, k]
        if are_numbers(column) or not rows.any():
            return
        rows &= [isinstance(cell, str) and cell == name for cell in column]
    found = numpy.flatnonzero(rows)
    if len(found):
        raise InvalidInput(
            f"Rows must hold values; row {join_names(found + 1)} repeats the names of the columns. Remove it, such as "
            f"by frame.drop(frame.index[{found[0]}]), and read the columns again as numbers."
        )


def source_texts(data: Any) -> dict[str, list[str]]:
    """Return the columns of text of a table, raw or encoded, that are no categories, by their names.

    Args:
        data: Pair of a frame and labels; other data have none.
    """
    frame = _frame_of(labelled_table(data))
    if frame is None:
        return {}
    known = frame.attrs.get(KEY)
    if isinstance(known, TableEncoding):
        return known.texts
    return texts_of(with_plain_columns(with_unique_names(frame)))


def encode_inputs(
    data: Any, test: Any = None, *, reads_amounts: bool = True
) -> tuple[Any, Any, tuple[str, ...]]:
    """Return pairs (frame, targets) with columns of numbers, other data as they are, and notes about what was changed.

    Args:
        data: Training data in any form; tables of pandas, polars or Arrow are encoded.
        test: More data, whose frame gets the columns of the training data; None for none.
        reads_amounts: Whether integer targets that no function can take as classes are numbers, as those of a column
            that is named as the target.
    """
    data = labelled_table(data)
    test = labelled_table(test)
    frame = _frame_of(data)
    note = ""
    if reads_amounts:
        data, test, note = with_amounts(data, test, are_columns=frame is not None)
    if is_list_or_tuple(data) and len(data) == 2:
        note = note or getattr(data[1], "attrs", {}).get(NOTE, "")
    target_notes = (note,) if note else ()
    if frame is None:
        return data, test, target_notes
    columns, notes = encode_frame(frame, labels=data[1])
    notes += target_notes
    second = _frame_of(test)
    if second is not None:
        second, found = encode_frame(second, like=columns)
        test = (_without_word_names(second), test[1])
        notes += tuple(note for note in found if note not in notes)
    return (_without_word_names(columns), data[1]), test, notes


def _without_word_names(columns: pandas.DataFrame) -> Any:
    """Return frequencies of words as an array, as those of a list of texts; other columns keep their names."""
    if list(columns.columns) != WORDS:
        return columns
    words = columns.to_numpy().view(WordFrequencies)
    words.text_keys = text_keys_of(columns)
    return words


def _frame_of(data: Any) -> pandas.DataFrame | None:
    """Return the inputs of a pair as a pandas frame if they are a table, else None."""
    if not isinstance(data, tuple | list) or len(data) != 2:
        return None
    frame = as_frame(data[0])
    if hasattr(frame, "select_dtypes"):
        return frame
    return None
