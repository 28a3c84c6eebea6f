"""Columns of tables in plain types: objects that are numbers, dates, durations and periods, cells that hold arrays."""

from __future__ import annotations

import datetime
import decimal
import numbers
import re
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import numpy

from gapscope.base.columns import decoded, is_row_of_numbers, unique_names
from gapscope.base.errors import InvalidInput, join_names

if TYPE_CHECKING:
    import pandas

NUMBERS = (numbers.Real, decimal.Decimal, numpy.bool_)
"""Types of the cells of a column of objects that is a column of numbers."""
ISO_DATE = re.compile(
    r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}([.,]\d+)?)?( ?(Z|[+-]\d{2}(:?\d{2})?))?)?"
)
"""A date of ISO 8601, perhaps with a time and a time zone."""


def with_unique_names(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Number columns of one name as pandas does for a file: a, a.1, a.2."""
    if frame.columns.is_unique and len(set(map(str, frame.columns))) == frame.shape[1]:
        return frame
    return frame.set_axis(unique_names(list(frame.columns)), axis=1)


def with_column(frame: pandas.DataFrame, name: Any, values: Any) -> pandas.DataFrame:
    """Return the frame with other values in a column, whose name need not be text (`assign` takes text alone)."""
    changed = frame.copy(deep=False)
    changed[name] = values
    return changed


def are_dates_as_text(column: pandas.Series) -> bool:
    """Return whether all cells that are not missing are text with a date of ISO 8601, such as 2024-05-31 10:30.

    Args:
        column: Column of a table.
    """
    import pandas

    if isinstance(column.dtype, pandas.CategoricalDtype) or are_numbers(column):
        return False
    cells = column.dropna()
    return len(cells) > 0 and all(
        isinstance(cell, str) and ISO_DATE.fullmatch(cell.strip()) for cell in cells
    )


def _dates(column: pandas.Series) -> pandas.Series:
    """Return text as dates, those with time zones in UTC; unchanged if a date does not exist."""
    import pandas

    try:
        dates = pandas.to_datetime(column.astype(object).str.strip(), format="ISO8601", utc=True)
    except ValueError:
        return column
    return dates.dt.tz_localize(None)


def plain_column(column: pandas.Series) -> pandas.Series:
    """Return a column of objects as numbers, dates, durations or text if all of its cells are such, others unchanged.

    Decimals are floats, missing cells of numbers are NaN, bytes are text in UTF-8, text with dates of ISO 8601 becomes
    dates, and periods are their first days.

    Args:
        column: Column of a table.
    """
    import pandas

    if isinstance(column.dtype, pandas.PeriodDtype):
        return column.dt.to_timestamp()
    if are_dates_as_text(column):
        return _dates(column)
    if column.dtype != object:
        return column
    cells = column.dropna()
    types = set(map(type, cells))
    if not types:
        return column
    if all(issubclass(each, NUMBERS) for each in types):
        values = [
            numpy.nan if missing else float(cell)
            for cell, missing in zip(column, column.isna(), strict=True)
        ]
        return pandas.Series(values, column.index, dtype=float, name=column.name)
    if types <= {bytes, str} and bytes in types:
        return column.map(decoded, na_action="ignore")
    convert = None
    if all(issubclass(each, datetime.date) for each in types):
        convert = pandas.to_datetime
    elif all(issubclass(each, datetime.timedelta) for each in types):
        convert = pandas.to_timedelta
    if convert is None:
        return column
    try:
        return convert(column)
    except (ValueError, TypeError):  # such as several time zones
        return column


def with_plain_columns(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Return a frame whose columns are plain (see `plain_column`)."""
    for name in frame.columns:
        column = frame[name]
        plain = plain_column(column)
        if plain is not column:
            frame = with_column(frame, name, plain)
    return frame


def holds_arrays(column: pandas.Series) -> bool:
    """Return whether the cells of a column are arrays, lists or other containers, by its first cell."""
    if column.dtype != object:
        return False
    first = column.dropna().iloc[:1].tolist()
    return bool(first) and (first[0].__hash__ is None or is_row_of_numbers(first[0]))


def array_values(column: pandas.Series) -> numpy.ndarray:
    """Return a column of arrays as a matrix [n, d].

    Args:
        column: Column whose cells are arrays.

    Raises:
        InvalidInput: The cells are something else, or of several lengths.
    """
    try:
        return numpy.stack([numpy.ravel(numpy.asarray(row, float)) for row in column])
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"Column {str(column.name)!r} must hold arrays of one length, or single values; got cells such as "
            f"{str(column.iloc[0])[:60]!r}. Encode it first, for example by sklearn's MultiLabelBinarizer."
        ) from error


def arrays_as_columns(
    frame: pandas.DataFrame,
) -> tuple[pandas.DataFrame, dict[Hashable, tuple[Hashable, ...]]]:
    """Replace columns whose cells are arrays, such as embeddings, by a column per number.

    Returns:
        The frame, and the names of the columns of each column of arrays, by its name.
    """
    import pandas

    parts: dict[Hashable, pandas.DataFrame] = {}
    arrays: list[Hashable] = []
    for name in frame.columns:
        parts[name] = frame[[name]]
        if holds_arrays(frame[name]):
            values = array_values(frame[name])
            numbered = [f"{name} {number}" for number in range(1, 1 + values.shape[1])]
            parts[name] = pandas.DataFrame(values, columns=numbered, index=frame.index)
            arrays.append(name)
    if not arrays:
        return frame, {}
    wide = with_unique_names(pandas.concat(parts.values(), axis=1))
    names = iter(wide.columns)
    own = {name: tuple(next(names) for _ in part.columns) for name, part in parts.items()}
    return wide, {name: own[name] for name in arrays}


def as_days(column: pandas.Series) -> tuple[numpy.ndarray | None, str]:
    """Return dates as days since 1970 and durations in days, with "date" or "duration"; None for other columns."""
    import pandas

    kind = "duration"
    if pandas.api.types.is_datetime64_any_dtype(column):
        # the same days in every part of the data
        column = column.dt.tz_localize(None) - pandas.Timestamp(0)
        kind = "date"
    if not pandas.api.types.is_timedelta64_dtype(column):
        return None, ""
    return column.to_numpy() / numpy.timedelta64(1, "D"), kind


def refuse_unusable(numbers: pandas.DataFrame) -> None:
    """Raise InvalidInput if a column of numbers holds infinity, or complex numbers."""
    for name in numbers:
        if numbers[name].dtype.kind == "c":
            raise InvalidInput(
                f"Column {str(name)!r} must hold real numbers; got {numbers[name].dtype}. Pass real and imaginary "
                "parts as two columns."
            )
        values = numbers[name].to_numpy(dtype=float, na_value=numpy.nan)
        rows = numpy.flatnonzero(numpy.isinf(values))
        if len(rows):
            listed = join_names(row + 1 for row in rows)
            raise InvalidInput(
                f"Column {str(name)!r} must hold finite numbers; got infinity in rows "
                f"{listed}. Correct these cells, or leave them empty."
            )


def are_numbers(column: pandas.Series) -> bool:
    """Return whether a column holds numbers or booleans."""
    import pandas

    return pandas.api.types.is_numeric_dtype(column)
