"""Targets in a column of a table: classes, and amounts that are integers or text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy
import torch

from gapscope.base.columns import as_numbers
from gapscope.base.errors import InvalidInput
from gapscope.base.foreign_data import as_frame
from gapscope.base.label_marks import find_marks
from gapscope.base.label_numbers import is_far_above
from gapscope.base.row_numbers import MIN_ROWS
from gapscope.base.targets import IGNORED, are_amounts
from gapscope.base.type_guards import is_list_or_tuple
from gapscope.data.named_columns import column_by_name
from gapscope.data.number_text import (
    MAX_CATEGORIES,
    find_format,
    has_numbers_in_text,
    has_text,
    note_on_errors,
)

if TYPE_CHECKING:
    import pandas

FORMAT, NOTE = "gapscope_format", "gapscope_note"
"""Names of the format of targets that were text, and of the note about it, among the attributes of a series."""


def _amounts_in_text(
    column: pandas.Series, like: pandas.Series | None = None
) -> tuple[pandas.Series, str] | None:
    """Return targets that are amounts written as text as numbers, and a note; None for others.

    Raises:
        InvalidInput: Some cells are no numbers.
    """
    known = None if like is None else like.attrs.get(FORMAT)
    text = find_format(column) if known is None else known
    if text is None or text.kind != "number" or not has_text(column):
        return None
    is_mixed = has_numbers_in_text(column)
    if known is None and not is_mixed and column.nunique() <= MAX_CATEGORIES:
        return None
    numbers = text.values(column)
    wrong = note_on_errors(column, numbers)
    if wrong:
        raise InvalidInput(
            f"{column.name}: {wrong}. Every sample needs a target: correct these cells, or remove the rows."
        )
    note = text.describe(column)
    is_few = known is None and is_mixed and numbers.nunique() <= MAX_CATEGORIES
    if (is_few and (numbers % 1 == 0).all()) or (like is not None and like.dtype == "int64"):
        numbers = numbers.astype("int64")  # classes
    else:
        note = note.removesuffix(".") + ", regression."
    numbers.attrs.update({FORMAT: text, NOTE: note})
    return numbers, note


def _are_negative_amounts(column: pandas.Series) -> bool:
    """Return whether integers are no classes: some are negative, and they are not the two classes -1 and 1."""
    values = {int(value) for value in column.unique()} - {IGNORED}
    return min(values, default=0) < 0 and not values <= {-1, 1}


def as_targets(
    column: pandas.Series, like: pandas.Series | None = None
) -> tuple[pandas.Series, str]:
    """Return a column of labels or targets, integers and text that are amounts as numbers, and a note (else empty).

    Args:
        column: Column of a table.
        like: Targets of the first table, by whose format those of a second are read.

    Raises:
        InvalidInput: It numbers or names the rows, or cells of amounts are no numbers.
    """
    import pandas

    from_text = _amounts_in_text(column, like)
    if from_text is not None:
        return from_text

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
    if is_text or counts or (n <= MAX_CATEGORIES and not _are_negative_amounts(column)):
        return column, ""
    is_first = like is None or pandas.api.types.is_integer_dtype(like)
    if is_first and find_marks(torch.tensor(column.to_numpy(dtype="int64"))):
        return column, ""  # classes, of which some may be missing
    low = int(column.min())
    high = int(column.max())
    note = f"{column.name}: {n:,} integers from {low:,} to {high:,}, read as numbers "
    note += "(regression); text would be classes."
    if low == -1 and high <= 1:
        note += f" If -1 marks a missing class, write {IGNORED}."
    amounts = column.astype(float)
    amounts.attrs[NOTE] = note
    return amounts, note


def split_frame(
    frame: Any, target: str | int, like: pandas.Series | None = None
) -> tuple[Any, pandas.Series]:
    """Return the columns other than the target, and the target, of data with named columns (see `as_targets`).

    Args:
        frame: Data with a value per sample in each column: a table of pandas, polars or Arrow, a mapping, a list of
            dictionaries, or a Dataset.
        target: Column of the labels or targets.
        like: Target of the first table, for a second one.

    Returns:
        A frame of the other columns, or a mapping of them where they hold token ids or pictures; and the column.

    Raises:
        InvalidInput: The data have no named columns, or no such column or no other.
    """
    inputs, labels = column_by_name(frame, target)
    return inputs, as_targets(labels, like)[0]


def split_frames(data: Any, test: Any, target: str | int) -> tuple[Any, Any]:
    """Return the first and the second table as pairs (inputs, target); None for a second one that is None.

    Args:
        data: The first table (see `split_frame`), by whose rules the second is read.
        test: The second table, or None.
        target: Column of the labels or targets.
    """
    first = split_frame(data, target)
    return first, None if test is None else split_frame(test, target, first[1])


def with_amounts(data: Any, test: Any, *, are_columns: bool) -> tuple[Any, Any, str]:
    """Return pairs with targets as numbers if they are amounts, and a note.

    These are text that holds numbers, and beside columns integers that are far above their number.
    """
    import pandas

    if not is_list_or_tuple(data) or len(data) != 2:
        return data, test, ""
    targets = as_frame(data[1])
    is_text_list = is_list_or_tuple(targets) and any(isinstance(cell, str) for cell in targets)
    if not is_text_list and not isinstance(targets, pandas.Series | numpy.ndarray):
        return data, test, ""
    if getattr(targets, "ndim", 1) != 1 or not len(targets):
        return data, test, ""
    column = pandas.Series(targets, name=getattr(targets, "name", None) or "targets")
    numbers, note = _amounts_in_text(column) or (column, "")
    if (
        not note
        and are_columns
        and pandas.api.types.is_integer_dtype(column)
        and not column.isna().any()
    ):
        labels = torch.tensor(column.to_numpy(dtype="int64"))
        is_amount = is_far_above(int(labels.max()), column.nunique()) and are_amounts(labels)
        if is_amount and not bool((labels == IGNORED).any()):
            numbers, note = as_targets(column)
    if not note:
        return data, test, ""
    if is_list_or_tuple(test) and len(test) == 2 and test[1] is not None:
        second = as_targets(pandas.Series(as_frame(test[1]), name=column.name), numbers)[0]
        test = (test[0], second.to_numpy(dtype="int64" if numbers.dtype == "int64" else float))
    return (data[0], numbers), test, note
