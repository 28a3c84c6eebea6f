"""Corrected labels in the form in which the data were passed: tables, mappings, lists of dictionaries, pairs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch import Tensor

from gapscope.base.columns import library_of
from gapscope.base.foreign_data import as_frame, as_passed_frame
from gapscope.base.rows import take_rows
from gapscope.base.samples import Samples
from gapscope.base.type_guards import is_list, is_list_or_tuple, is_mapping

if TYPE_CHECKING:
    import pandas


def keeps_form(data: Any, target: str | int | None) -> bool:
    """Return whether `with_corrections` gives these data back in their form; others become samples.

    Args:
        data: Data as passed.
        target: Column of the labels; None for a pair (frame, labels).
    """
    if target is None:
        is_pair = is_list_or_tuple(data) and len(data) == 2
        return is_pair and hasattr(as_frame(data[0]), "iloc") and getattr(data[1], "ndim", 1) == 1
    if library_of(data) == "datasets":
        return False
    is_rows = is_list(data) and all(is_mapping(row) for row in data)
    return is_rows or is_mapping(data) or library_of(as_frame(data)) == "pandas"


def as_series(labels: Any) -> pandas.Series:
    """Return labels in any form as a series.

    Args:
        labels: Tensor, array, list or column of a table, [n].
    """
    import pandas

    if isinstance(labels, Tensor):
        labels = labels.detach().cpu().numpy()
    return pandas.Series(as_frame(labels))


def _key(data: Any, target: str | int) -> Any:
    """Return the name of a column as a mapping has it."""
    return next((name for name in data if str(name) == str(target)), target)


def class_cells(samples: Samples, cells: Sequence[Any], values: pandas.Series) -> dict[int, Any]:
    """Return what the rows of each class hold most often; declared categories without a row as they are.

    Args:
        samples: The samples, each with a class.
        cells: What the row of each sample holds, in their order.
        values: Column of the labels, with its categories.
    """
    spellings: defaultdict[int, Counter[Any]] = defaultdict(Counter)
    for code, cell in zip(samples.y.flatten().tolist(), cells, strict=True):
        spellings[code][cell] += 1
    names = {str(value): value for value in getattr(values.dtype, "categories", ())}
    declared = {code: names.get(name) for code, name in enumerate(samples.class_names)}
    return declared | {code: counts.most_common(1)[0][0] for code, counts in spellings.items()}


def with_corrections(
    data: Any,
    target: Any,
    values: pandas.Series,
    samples: Samples,
    decisions: Mapping[int, float | None],
) -> Any:
    """Return data with corrected labels and without the dropped rows.

    Args:
        data: The data, of which `keeps_form` is true.
        target: Column of the labels or targets; None for a pair.
        values: The column with what stays, in which the labels are changed.
        samples: The samples of the data; rows without a label have none, and stay.
        decisions: By sample, a regression target or a class; None to drop it.
    """
    rows: list[int] = samples.original(torch.arange(len(samples))).tolist()
    column = values.copy()
    label_of: dict[int, Any] = {}
    if samples.kind != "regression":
        label_of = class_cells(samples, column.iloc[rows].tolist(), column)
    for index, decision in decisions.items():
        if decision is not None:
            column.iloc[rows[index]] = label_of[int(decision)] if label_of else decision
    dropped = {rows[index] for index, decision in decisions.items() if decision is None}
    kept = [row for row in range(len(column)) if row not in dropped]
    column = column.iloc[kept]
    if target is None:
        corrected = as_passed_frame(data[0]).iloc[kept], _as_column(column, data[1])
        return list(corrected) if is_list(data) else corrected
    if is_list(data):
        labels = column.tolist()
        return [
            {**data[row], _key(data[row], target): label}
            for row, label in zip(kept, labels, strict=True)
        ]
    frame = as_passed_frame(data)
    if not is_mapping(frame):
        corrected = frame.iloc[kept].copy()
        corrected[target] = column
        return corrected
    name = _key(frame, target)
    return {
        key: _as_column(column, value)
        if key == name
        else take_rows(value, numpy.array(kept, dtype=int))
        for key, value in frame.items()
    }


def _as_column(column: pandas.Series, like: Any) -> Any:
    """Return a series in the form of the column that was passed: a tensor, an array, a list or a series."""
    if isinstance(like, Tensor):
        corrected = torch.tensor(column.tolist(), device=like.device)
        is_same = like.is_floating_point() or not corrected.is_floating_point()
        return corrected.to(like.dtype) if is_same else corrected
    if is_list_or_tuple(like):
        return type(like)(column.tolist())
    if library_of(like) == "numpy":
        return column.to_numpy().astype(like.dtype, copy=False)
    return column
