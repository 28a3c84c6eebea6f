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


def _columns(inputs: Any) -> list[tuple[str, numpy.ndarray]]:
    """Return the columns of a table of numbers by name or index; none of other inputs, and of columns of text."""
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
    # a few rows show which columns may count
    head: Any = inputs[:MIN_ROWS]
    whole: list[bool] = (head == head.round()).all(0).tolist()
    columns: list[tuple[str, numpy.ndarray]] = []
    for k, may_count in enumerate(whole):
        if may_count:
            column = inputs[:, k]
            if isinstance(column, Tensor):
                column = column.detach().double().cpu()
            columns.append((str(k), numpy.asarray(column)))
    return columns


def row_number_note(inputs: Any, names: Sequence[str] = ()) -> list[str]:
    """Return the note about columns of a table that hold consecutive integers, one per row (none without any).

    Args:
        inputs: Inputs in any form: a matrix or a frame is a table.
        names: Names of the columns of a matrix; empty for their indices.
    """
    shape = getattr(inputs, "shape", ())
    if len(shape) != 2 or shape[0] < MIN_ROWS or shape[1] < 2:
        return []
    found: list[str] = []
    for name, values in _columns(inputs):
        if values[0] % 1 == 0 and (numpy.diff(numpy.sort(values)) == 1).all():
            found.append(names[int(name)] if names else name)
    if not found:
        return []
    subject = f"Column {found[0]} numbers"
    if len(found) > 1:
        subject = f"Columns {join_names(found)} number"
    return [
        f"{subject} the rows (consecutive integers), which can give the label away. Remove them from the inputs."
    ]
