"""Raw tables as numbers: text as indicators, missing numbers filled, numbers of rows omitted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy
import torch

from gapscope.base.columns import as_numbers
from gapscope.base.errors import InvalidInput
from gapscope.base.foreign_data import HASHED, TEXT_COLUMNS, as_frame, hashed_words
from gapscope.base.label_numbers import is_far_above
from gapscope.base.row_numbers import MIN_ROWS, is_identifier_name
from gapscope.base.targets import IGNORED, are_amounts
from gapscope.data.named_columns import column_by_name, labelled_table
from gapscope.data.plain_columns import (
    are_numbers,
    arrays_as_columns,
    as_days,
    plain_column,
    refuse_unusable,
    with_column,
    with_plain_columns,
    with_unique_names,
)
from gapscope.data.table_encoding import (
    KEY,
    ColumnEncoding,
    TableEncoding,
    category_names,
    encoding_of,
    fraction_of_single,
    indicators,
)
from gapscope.results.formatting import pluralize

if TYPE_CHECKING:
    import pandas

# More different values are no classes: a column of text with more than half as many as rows holds names, and integers
# are amounts, unless they are numbered from 0 or 1 without a gap.
MAX_CATEGORIES = 20
# names of the columns of hashed words
WORDS = [f"words {number}" for number in range(1, TEXT_COLUMNS + 1)]


def _is_row_number(column: pandas.Series) -> bool:
    """Return whether a column counts the rows: integers, each one more than the one before."""
    import pandas

    if (
        not pandas.api.types.is_numeric_dtype(column)
        or len(column) < MIN_ROWS
        or column.isna().any()
    ):
        return False
    return bool((numpy.diff(column.to_numpy(dtype=float)) == 1).all())


def _is_identifier(name: str, column: pandas.Series) -> bool:
    """Return whether a column has the name of an identifier and a different value in each row (no decimals)."""
    import pandas

    if len(column) < MIN_ROWS or not is_identifier_name(name):
        return False
    if pandas.api.types.is_float_dtype(column) and not (column.dropna() % 1 == 0).all():
        return False
    return column.nunique(dropna=False) == len(column)


def _times_as_days(
    frame: pandas.DataFrame, notes: list[str]
) -> tuple[pandas.DataFrame, dict[Any, str]]:
    """Replace dates and durations by days, add notes, and return the kinds of these columns by their names."""
    times: dict[Any, str] = {}
    for name in frame.columns:
        days, kind = as_days(frame[name])
        if days is not None:
            frame = with_column(frame, name, days)
            times[name] = kind
    for kind, unit in (("date", "days since 1970"), ("duration", "durations, in days")):
        named = [str(name) for name, found in times.items() if found == kind]
        if named:
            notes.append(f"{', '.join(named)}: {unit}.")
    return frame, times


def _encodings_of_arrays(
    arrays: dict[Any, tuple[Any, ...]], kept: Sequence[Any], dtypes: dict[str, str]
) -> list[ColumnEncoding]:
    """Return the encodings of columns of arrays, of which some numbers may have been omitted."""
    encodings: list[ColumnEncoding] = []
    for name, numbered in arrays.items():
        levels = tuple(k for k, output in enumerate(numbered) if output in kept)
        outputs = tuple(numbered[k] for k in levels)
        if levels:
            encodings.append(
                ColumnEncoding(
                    str(name), "array", dtypes[str(name)], outputs, levels, len(numbered)
                )
            )
    return encodings


def _words(columns: Sequence[pandas.Series]) -> tuple[pandas.DataFrame, tuple[str, ...]]:
    """Return the words of all columns as columns of frequencies, and a note."""
    import pandas

    frame = pandas.concat([plain_column(column) for column in columns], axis=1)
    texts = frame.astype(object).fillna("").astype(str).agg(" ".join, axis=1)
    listed = ", ".join(str(column.name) for column in columns)
    values = hashed_words(texts.tolist())
    note = f"{listed}: read as {HASHED}"
    return pandas.DataFrame(values, columns=WORDS, index=frame.index), (note,)


def encode_frame(
    frame: pandas.DataFrame, *, like: pandas.DataFrame | None = None
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

    Raises:
        InvalidInput: No column remains, a number is infinite, or `frame` lacks a column of `like`.
    """
    if list(frame.columns) == WORDS:  # encoded already
        return frame, ()
    # the columns of a second part are those of the first, whatever its own rows look like
    if like is not None:
        encoding = encoding_of(like)
        if encoding.words:
            return _words(encoding.own_columns(frame))
        return encoding.apply(frame)
    return _first_encoding(frame)


def _first_encoding(frame: pandas.DataFrame) -> tuple[pandas.DataFrame, tuple[str, ...]]:
    """Return the first part of the data as numbers, with its encoding as an attribute, and notes."""
    import pandas

    notes: list[str] = []
    frame = with_unique_names(frame)
    dtypes = {str(name): str(frame[name].dtype) for name in frame.columns}
    frame, arrays = arrays_as_columns(with_plain_columns(frame))
    if arrays:
        notes.append(f"{', '.join(map(str, arrays))}: one column per number of its arrays.")
    frame, times = _times_as_days(frame, notes)
    empty = [name for name in frame if frame[name].isna().all()]
    frame = frame.drop(columns=empty)
    if empty:
        notes.append(f"{', '.join(map(str, empty))}: omitted, since it is empty.")
    text = [name for name in frame if not are_numbers(frame[name])]
    refuse_unusable(frame.drop(columns=text))
    names = [name for name in text if frame[name].nunique() > max(MAX_CATEGORIES, len(frame) // 2)]
    numbering = [
        name
        for name in frame
        if _is_row_number(frame[name]) or _is_identifier(str(name), frame[name])
    ]
    others = set(frame.columns) - set(names) - set(numbering)
    are_texts = bool(names) and not others
    if not names and not others:  # at least one column must remain
        numbering = []
    frame = frame.drop(columns=numbering)
    if numbering:
        listed = ", ".join(str(name) or "a column without a name" for name in numbering)
        notes.append(
            f"{listed}: omitted, since it numbers or identifies the rows, which can give the label away."
        )
    if are_texts:
        words, word_notes = _words([frame[name] for name in frame])
        columns = [ColumnEncoding(str(name), "text", dtypes[str(name)], ()) for name in frame]
        words.attrs[KEY] = TableEncoding(tuple(columns), tuple(WORDS), {}, words=True)
        return words, (*notes, *word_notes)
    frame = frame.drop(columns=[name for name in names if name not in numbering])
    names = [name for name in names if name not in numbering]
    categories = [name for name in text if name in frame]
    numbers = [name for name in frame if name not in categories]
    missing = int(frame[numbers].isna().sum().sum())
    if names:
        notes.append(
            f"{', '.join(map(str, names))}: dropped, since nearly every row has a different value. If these are texts, "
            "pass them alone, or a column of their embeddings (gapscope.embed)."
        )
    if categories:
        notes.append(f"{', '.join(map(str, categories))}: one column per value.")
    if missing:
        notes.append(
            f"{pluralize(missing, 'missing number')}: filled with the median of the column."
        )
    if frame.columns.empty:
        raise InvalidInput(
            "Got empty columns alone; numbers, categories or texts are needed. Pass other columns."
        )
    levels = [(name, tuple(pandas.Categorical(frame[name]).categories)) for name in categories]
    level_names = category_names(levels, numbers)
    values = {name: frame[name].to_numpy(dtype=float, na_value=numpy.nan) for name in numbers}
    for (name, known), outputs in zip(levels, level_names, strict=True):
        values.update(zip(outputs, indicators(frame[name], known).T, strict=True))
    encoded = pandas.DataFrame(values, index=frame.index)
    medians = {name: float(value) for name, value in encoded[numbers].median().items()}
    encoded = encoded.fillna(medians)
    columns = _encodings_of_arrays(arrays, numbers, dtypes)
    of_arrays = {output for column in columns for output in column.outputs}
    columns += [
        ColumnEncoding(str(name), times.get(name, "number"), dtypes[str(name)], (name,))
        for name in numbers
        if name not in of_arrays
    ]
    columns += [
        ColumnEncoding(
            str(name),
            "category",
            dtypes[str(name)],
            tuple(outputs),
            known,
            single=fraction_of_single(frame[name]),
        )
        for (name, known), outputs in zip(levels, level_names, strict=True)
    ]
    encoded.attrs[KEY] = TableEncoding(tuple(columns), tuple(encoded.columns), medians)
    return encoded, tuple(notes)


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
    data, test = labelled_table(data), labelled_table(test)
    frame = _frame_of(data)
    if frame is None:
        return data, test, ()
    columns, notes = encode_frame(frame)
    if reads_amounts:
        data, test, note = _with_amounts(data, test)
        notes += (note,) if note else ()
    second = _frame_of(test)
    if second is not None:
        second, found = encode_frame(second, like=columns)
        test = (_without_word_names(second), test[1])
        notes += tuple(note for note in found if note not in notes)
    return (_without_word_names(columns), data[1]), test, notes


def _with_amounts(data: Any, test: Any) -> tuple[Any, Any, str]:
    """Return pairs with integer targets as numbers if they are amounts far above their number, and a note."""
    import pandas

    targets = as_frame(data[1])
    if not isinstance(targets, pandas.Series | numpy.ndarray) or targets.ndim != 1:
        return data, test, ""
    column = pandas.Series(targets, name=getattr(targets, "name", None) or "targets")
    if not len(column) or not pandas.api.types.is_integer_dtype(column) or column.isna().any():
        return data, test, ""
    labels = torch.tensor(column.to_numpy(dtype="int64"))
    is_amount = is_far_above(int(labels.max()), column.nunique()) and are_amounts(labels)
    if not is_amount or bool((labels == IGNORED).any()):
        return data, test, ""
    numbers, note = as_targets(column)
    if not note:
        return data, test, ""
    if isinstance(test, tuple | list) and len(test) == 2 and test[1] is not None:
        test = (test[0], numpy.asarray(as_frame(test[1]), dtype=float))
    return (data[0], numbers), test, note


def _without_word_names(columns: pandas.DataFrame) -> Any:
    """Return frequencies of words as an array, as those of a list of texts; other columns keep their names."""
    if list(columns.columns) == WORDS:
        return columns.to_numpy()
    return columns


def _frame_of(data: Any) -> pandas.DataFrame | None:
    """Return the inputs of a pair as a pandas frame if they are a table, else None."""
    if not isinstance(data, tuple | list) or len(data) != 2:
        return None
    frame = as_frame(data[0])
    if hasattr(frame, "select_dtypes"):
        return frame
    return None


def as_targets(column: pandas.Series) -> tuple[pandas.Series, str]:
    """Return a column of labels or targets, integers that are amounts as numbers, and a note about it (else empty).

    Args:
        column: Column of a table.

    Raises:
        InvalidInput: It numbers or names the rows.
    """
    import pandas

    if column.dtype == object and not column.isna().any():
        values = as_numbers(column.to_numpy())
        if values.dtype != object:
            column = pandas.Series(values, column.index, name=column.name)
    is_text = pandas.api.types.is_string_dtype(column)
    is_integer = pandas.api.types.is_integer_dtype(column) and not column.isna().any()
    if not (is_text or is_integer) or not len(column):
        return column, ""
    n = column.nunique()
    counts = is_integer and int(column.min()) in (0, 1) and column.max() - column.min() < n
    if n == len(column) >= MIN_ROWS and (is_text or counts):
        raise InvalidInput(
            f"Column {str(column.name)!r} must hold labels; it has another value in each of the {n} rows, as numbers "
            "and names of rows have. Name the column of the labels."
        )
    if is_text or counts or n <= MAX_CATEGORIES:
        return column, ""
    low, high = int(column.min()), int(column.max())
    note = f"{column.name}: {n:,} integers from {low:,} to {high:,}, read as numbers "
    note += "(regression); text would be classes."
    return column.astype(float), note


def split_frame(frame: Any, target: str | int) -> tuple[Any, pandas.Series]:
    """Return the columns other than the target, and the target, of data with named columns (see `as_targets`).

    Args:
        frame: Data with a value per sample in each column: a table of pandas, polars or Arrow, a mapping, a list of
            dictionaries, or a Dataset.
        target: Column of the labels or targets.

    Returns:
        A frame of the other columns, or a mapping of them where they hold token ids or pictures; and the column.

    Raises:
        InvalidInput: The data have no named columns, or no such column or no other.
    """
    inputs, labels = column_by_name(frame, target)
    return inputs, as_targets(labels)[0]
