"""Columns that number or identify the rows: names, values, and the note about those of arrays.

Where rows are sorted by label, such a column gives the label away; it holds nothing about new samples.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy
import torch
from torch import Tensor

from gapscope.base.columns import library_of
from gapscope.base.errors import join_names
from gapscope.base.foreign_data import as_frame

MIN_ROWS = 10
"""Fewer rows may be numbered by chance, or on purpose."""
# an index that pandas, R, datasets or a spreadsheet wrote into the table, or a number of the row
_INDEX = re.compile(
    r"(|__index_level_\d+__|level_\d+|Unnamed: \d+|index|idx|ids?|uuid|guid|rows?|rownames)(\.\d+)?",
    re.IGNORECASE,
)
# the last part of a longer name, such as customer_id and customerID
_IDENTIFIER = re.compile(
    r"(.*[_ .-])?(ids?|uuid|guid|key|index|idx|rows?|rownames|nr|no)(\.\d+)?", re.IGNORECASE
)
_ENDING = re.compile(r".*[a-z](Id|ID)")


def is_index_name(name: str) -> bool:
    """Return whether a column has the name of an index of rows, such as `id`, `Unnamed: 0` or `__index_level_0__`."""
    return _INDEX.fullmatch(name.strip()) is not None


def is_identifier_name(name: str) -> bool:
    """Return whether a column has the name of an index of rows, or of an identifier, such as `customer_id`."""
    name = name.strip()
    return is_index_name(name) or any(
        pattern.fullmatch(name) is not None for pattern in (_IDENTIFIER, _ENDING)
    )


def is_identifier(name: str, column: Any) -> bool:
    """Return whether a column has the name of an identifier and a different value in each row (no decimals).

    Args:
        name: Name of the column.
        column: Column of a table of pandas.
    """
    if len(column) < MIN_ROWS or not is_identifier_name(name):
        return False
    if column.dtype.kind == "f" and not (column.dropna() % 1 == 0).all():
        return False
    try:
        return column.nunique(dropna=False) == len(column)
    except TypeError:  # cells that are lists
        return False


def _columns(inputs: Any) -> list[tuple[str, numpy.ndarray]]:
    """Return the columns of a table that may number its rows, by name or index; none of other inputs."""
    if library_of(inputs) == "pandas" and hasattr(inputs, "columns"):
        return [
            (str(name), inputs.iloc[:, k].to_numpy(dtype=float, na_value=numpy.nan))
            for k, name in enumerate(inputs.columns)
            if inputs.iloc[:, k].dtype.kind in "iuf"
        ]
    if isinstance(inputs, Tensor):
        is_plain = inputs.layout == torch.strided and inputs.device.type != "meta"
        is_real = is_plain and not inputs.is_complex() and inputs.dtype != torch.bool
    else:
        is_real = library_of(inputs) == "numpy" and inputs.dtype.kind in "iuf"
    if not is_real or inputs.ndim != 2:
        return []
    # a few rows, then the extremes, show which columns may count: sorting all would take seconds of each call
    head: Any = inputs[:MIN_ROWS]
    may_count: list[bool] = (head == head.round()).all(0).tolist()
    if not any(may_count):
        return []
    if isinstance(inputs, Tensor):
        inputs = inputs.detach()
        spans = (inputs.amax(0).double() - inputs.amin(0).double()).tolist()
    else:
        spans = (inputs.max(0).astype(float) - inputs.min(0).astype(float)).tolist()
    columns: list[tuple[str, numpy.ndarray]] = []
    for k, span in enumerate(spans):
        if may_count[k] and span == len(inputs) - 1:
            column = inputs[:, k]
            if isinstance(column, Tensor):
                column = column.double().cpu()
            columns.append((str(k), numpy.asarray(column)))
    return columns


def row_number_note(inputs: Any, names: Sequence[str] = ()) -> list[str]:
    """Return the notes about columns of a table that number or identify the rows (none without any).

    They hold consecutive integers, or a frame names them so and each row has another value.

    Args:
        inputs: Inputs in any form: a matrix or a frame is a table.
        names: Names of the columns of a matrix; empty for their indices.
    """
    shape = getattr(inputs, "shape", ())
    if len(shape) != 2 or shape[0] < MIN_ROWS or shape[1] < 2:
        return []
    inputs = as_frame(inputs)
    found: list[str] = []
    for name, values in _columns(inputs):
        if values[0] % 1 == 0 and (numpy.diff(numpy.sort(values)) == 1).all():
            found.append(names[int(name)] if names else name)
    identifiers = [
        str(name)
        for k, name in enumerate(getattr(inputs, "columns", ()))
        if str(name) not in found and is_identifier(str(name), inputs.iloc[:, k])
    ]
    return _note(found, "number", "consecutive integers") + _note(
        identifiers, "identify", "another value in each"
    )


class RowNumberNote(str):
    """Note about columns that number or identify the rows."""


def _note(names: Sequence[str], verb: str, what: str) -> list[str]:
    if not names:
        return []
    subject = f"Columns {join_names(names)} {verb}"
    if len(names) == 1:
        subject = f"Column {names[0]} {'numbers' if verb == 'number' else 'identifies'}"
    return [
        RowNumberNote(
            f"{subject} the rows ({what}), which can give the label away. Remove them from the inputs."
        )
    ]
