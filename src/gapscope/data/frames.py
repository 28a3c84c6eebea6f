"""Raw tables as numbers: text as indicators, missing numbers filled, numbers of rows omitted."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy

from gapscope.base.columns import is_row_of_numbers
from gapscope.base.errors import InvalidInput, did_you_mean, join_names
from gapscope.base.foreign_data import HASHED, TEXT_COLUMNS, as_frame, hashed_words
from gapscope.results.formatting import pluralize

if TYPE_CHECKING:
    import pandas

# More different values are no classes: a column of text with more than half as many as rows holds names, and integers
# are amounts, unless they are numbered from 0 or 1 without a gap.
MAX_CATEGORIES = 20
# Fewer rows may be numbered by chance, or on purpose.
MIN_ROWS = 10
# Names of columns that number the rows; the last part of a longer name counts, such as customer_id and customerID.
_ID_NAME = re.compile(
    r"(.*[_ .-])?(id|ids|uuid|guid|key|index|idx|row|rows|rownames|nr|no)|", re.IGNORECASE
)
_ID_ENDING = re.compile(r".*[a-z](Id|ID)|Unnamed: \d+")
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

    if len(column) < MIN_ROWS or not (_ID_NAME.fullmatch(name) or _ID_ENDING.fullmatch(name)):
        return False
    if pandas.api.types.is_float_dtype(column) and not (column.dropna() % 1 == 0).all():
        return False
    return column.nunique(dropna=False) == len(column)


def _with_unique_names(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Number columns of one name as pandas does for a file: a, a.1, a.2."""
    if frame.columns.is_unique:
        return frame
    taken = {str(name) for name in frame.columns}
    seen: set[str] = set()
    names: list[str] = []
    for name in map(str, frame.columns):
        unique, number = name, 0
        while unique in seen or (number and unique in taken):
            number += 1
            unique = f"{name}.{number}"
        seen.add(unique)
        names.append(unique)
    return frame.set_axis(names, axis=1)


def _arrays_as_columns(frame: pandas.DataFrame) -> tuple[pandas.DataFrame, list[str]]:
    """Replace columns whose cells are arrays, such as embeddings, by a column per number, and return their names.

    Raises:
        InvalidInput: The cells are lists of something else, or of several lengths.
    """
    import pandas

    expanded: list[str] = []
    parts: list[pandas.DataFrame] = []
    for name in frame.columns:
        column = frame[name]
        first = column.dropna().iloc[:1].tolist() if column.dtype == object else []
        if not first or (first[0].__hash__ is not None and not is_row_of_numbers(first[0])):
            parts.append(frame[[name]])
            continue
        try:
            values = numpy.stack([numpy.ravel(numpy.asarray(row, float)) for row in column])
        except (TypeError, ValueError) as error:
            raise InvalidInput(
                f"Column {str(name)!r} must hold arrays of one length, or single values; got cells such as "
                f"{str(column.iloc[0])[:60]!r}. Encode it first, for example by sklearn's MultiLabelBinarizer."
            ) from error
        numbered = [f"{name} {number}" for number in range(1, 1 + values.shape[1])]
        parts.append(pandas.DataFrame(values, columns=numbered, index=frame.index))
        expanded.append(str(name))
    if not expanded:
        return frame, []
    return pandas.concat(parts, axis=1), expanded


def _with_column(frame: pandas.DataFrame, name: Any, values: Any) -> pandas.DataFrame:
    """Return the frame with other values in a column, whose name need not be text (`assign` takes text alone)."""
    changed = frame.copy(deep=False)
    changed[name] = values
    return changed


def _dates_as_days(frame: pandas.DataFrame) -> tuple[pandas.DataFrame, list[str]]:
    """Replace dates and durations by days, and return the names of these columns."""
    import pandas

    names: list[str] = []
    for name in frame.columns:
        column = frame[name]
        if pandas.api.types.is_datetime64_any_dtype(column):
            # the same days in every part of the data
            column = column.dt.tz_localize(None) - pandas.Timestamp(0)
        if pandas.api.types.is_timedelta64_dtype(column):
            frame = _with_column(frame, name, column.to_numpy() / numpy.timedelta64(1, "D"))
            names.append(str(name))
    return frame, names


def _words(frame: pandas.DataFrame) -> tuple[pandas.DataFrame, str]:
    """Return the words of all columns as columns of frequencies, and a note."""
    import pandas

    texts = frame.fillna("").astype(str).agg(" ".join, axis=1)
    listed = ", ".join(map(str, frame.columns))
    values = hashed_words(texts.tolist())
    return pandas.DataFrame(values, columns=WORDS, index=frame.index), f"{listed}: read as {HASHED}"


def _refuse_infinite(numbers: pandas.DataFrame) -> None:
    """Raise InvalidInput if a column of numbers holds infinity."""
    for name in numbers:
        rows = numpy.flatnonzero(
            numpy.isinf(numbers[name].to_numpy(dtype=float, na_value=numpy.nan))
        )
        if len(rows):
            listed = join_names(row + 1 for row in rows)
            raise InvalidInput(
                f"Column {str(name)!r} must hold finite numbers; got infinity in rows "
                f"{listed}. Correct these cells, or leave them empty."
            )


def _nullable_as_floats(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Replace nullable and sparse numbers and booleans by floats, because theirs take no median for what is missing."""
    import pandas

    for name in frame.columns:
        column = frame[name]
        is_number = pandas.api.types.is_numeric_dtype(column)
        if is_number and pandas.api.types.is_extension_array_dtype(column):
            floats = column.to_numpy(dtype=float, na_value=numpy.nan)
            frame = _with_column(frame, name, floats)
    return frame


def encode_frame(
    frame: pandas.DataFrame, *, like: pandas.DataFrame | None = None
) -> tuple[pandas.DataFrame, tuple[str, ...]]:
    """Return a frame of numbers, and notes about what was changed.

    Text columns become one column per value, those of which nearly every row has a different value are dropped, and
    missing numbers are filled with the median of their column. Columns whose cells are arrays, such as embeddings,
    become a column per number, and columns of one name are numbered. If no other columns are left, they are texts, and
    become frequencies of hashed words. Dates become days since 1970. Empty columns, and columns that number or identify
    the rows, are omitted: where rows are sorted, such numbers give the label away.

    Args:
        frame: Columns of numbers and text.
        like: Encoded frame of another part of the data, whose columns are returned. Values of a text column that it
            lacks are 0 in all of its columns, and missing numbers are filled with its medians.

    Raises:
        InvalidInput: No column remains, a number is infinite, or `frame` lacks a column of `like`.
    """
    import pandas

    notes: list[str] = []
    if list(frame.columns) == WORDS:  # encoded already
        return frame, ()
    frame, arrays = _arrays_as_columns(_with_unique_names(frame))
    if arrays:
        notes.append(f"{', '.join(arrays)}: one column per number of its arrays.")
    frame, dates = _dates_as_days(frame)
    if dates:
        notes.append(f"{', '.join(dates)}: days since 1970.")
    # the columns of a second part are those of the first, whatever its own rows look like
    if like is not None and list(like.columns) == WORDS:
        words, note = _words(frame.select_dtypes(exclude="number"))
        return words, (*notes, note)
    empty = []
    if like is None:
        empty = [name for name in frame if frame[name].isna().all()]
    frame = frame.drop(columns=empty)
    if empty:
        notes.append(f"{', '.join(map(str, empty))}: omitted, since it is empty.")
    text = [name for name in frame if not pandas.api.types.is_numeric_dtype(frame[name])]
    _refuse_infinite(frame.drop(columns=text))
    names = [name for name in text if frame[name].nunique() > max(MAX_CATEGORIES, len(frame) // 2)]
    numbering = [
        name
        for name in frame
        if _is_row_number(frame[name]) or _is_identifier(str(name), frame[name])
    ]
    if like is not None:
        names, numbering = [], []
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
        words, note = _words(frame)
        return words, (*notes, note)
    text = [name for name in text if name not in numbering]
    names = [name for name in names if name not in numbering]
    categories = [name for name in text if name not in names]
    missing = int(frame.drop(columns=text).isna().sum().sum())
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
    numbers = _nullable_as_floats(frame.drop(columns=names))
    encoded = pandas.get_dummies(numbers, columns=categories, dtype=float)
    if like is None:
        return encoded.fillna(encoded.median()), tuple(notes)
    known = tuple(f"{name}_" for name in categories)
    lacking = [
        str(name)
        for name in like.columns
        if name not in encoded and not str(name).startswith(known)
    ]
    if lacking:
        raise InvalidInput(
            f"The second table must have the columns of the first; it lacks {join_names(lacking)}. Add "
            "them, or remove them from both."
        )
    return encoded.reindex(columns=like.columns, fill_value=0.0).fillna(like.median()), tuple(notes)


def encode_inputs(data: Any, test: Any = None) -> tuple[Any, Any, tuple[str, ...]]:
    """Return pairs (frame, targets) with columns of numbers, other data as they are, and notes about what was changed.

    Args:
        data: Training data in any form; tables of pandas, polars or Arrow are encoded.
        test: More data, whose frame gets the columns of the training data; None for none.
    """
    frame = _frame_of(data)
    if frame is None:
        return data, test, ()
    columns, notes = encode_frame(frame)
    second = _frame_of(test)
    if second is not None:
        test = (_without_word_names(encode_frame(second, like=columns)[0]), test[1])
    return (_without_word_names(columns), data[1]), test, notes


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


def split_frame(frame: Any, target: str | int) -> tuple[pandas.DataFrame, pandas.Series]:
    """Return the columns other than the target, and the target, of a table (see `as_targets`).

    Args:
        frame: Table of pandas, polars or Arrow with a row per sample.
        target: Column of the labels or targets.

    Raises:
        InvalidInput: This is no frame, or it has no such column or no other.
    """
    import pandas

    frame = as_frame(frame)
    if not isinstance(frame, pandas.DataFrame):
        raise InvalidInput(
            f"Got target={target!r} with a {type(frame).__name__}; a table (pandas, polars, Arrow) is needed. Pass one."
        )
    if target not in frame:
        columns = [str(name) for name in frame]
        hint = did_you_mean(str(target), columns) or f" Pass one of {join_names(columns)}."
        raise InvalidInput(f"Got target={target!r}, which is no column of the frame.{hint}")
    if sum(name == target for name in frame.columns) > 1:
        raise InvalidInput(
            f"Got target={target!r}, the name of several columns; it must be one. Rename or drop the others."
        )
    if frame.shape[1] < 2:
        raise InvalidInput(
            f"Got a frame with the column {target!r} alone; one column of features at least is needed."
        )
    return frame.drop(columns=target), as_targets(frame[target])[0]
