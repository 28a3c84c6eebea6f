"""Corrected labels in the form in which the data were passed: tables, mappings, data sets, pairs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset

from gapscope.base.columns import library_of
from gapscope.base.foreign_data import as_frame, as_passed_frame
from gapscope.base.random_streams import kept_random_states
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
    is_items = is_list(data) or isinstance(data, Dataset)
    return is_items or is_mapping(data) or library_of(as_frame(data)) in ("pandas", "datasets")


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


class CorrectedItems(Subset[Any]):
    """Items of a data set of mappings, as it returns them, with other labels.

    Args:
        items: The data set; one item is read.
        rows: Rows of the items that remain.
        target: Name of the labels in an item.
        column: Labels of these rows.
    """

    def __init__(self, items: Any, rows: list[int], target: str, column: pandas.Series) -> None:
        super().__init__(items, rows)
        like: Any = items[rows[0]]
        self.name = _key(like, target)
        has_type = hasattr(like[self.name], "dtype")
        self.labels: Any = _as_column(column, like[self.name]) if has_type else column.tolist()

    def __getitem__(self, idx: Any) -> Any:
        return {**self.dataset[self.indices[idx]], self.name: self.labels[idx]}

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def _of_hugging_face(data: Any, target: str, column: pandas.Series) -> Any:
    """Return a Hugging Face data set with another column of labels, in its order of columns and its format."""
    from datasets import Dataset, Features, Value, concatenate_datasets

    feature = data.features[target]
    if column.dtype == float and "float" not in feature.dtype:
        feature = Value("float64")
    labels = Dataset.from_dict({target: column.tolist()}, features=Features({target: feature}))
    others = data.with_format(None).remove_columns(target)
    joined = concatenate_datasets([others, labels], split=data.split, axis=1)
    return joined.select_columns(data.column_names).with_format(**data.format)


@kept_random_states()
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
    if library_of(data) == "datasets":
        if hasattr(column, "cat"):
            column = column.cat.codes
        name = str(target)
        is_stored = data.format["type"] != "custom"
        if not is_stored and name in data.column_names:  # the user's transform may change labels
            pairs = zip(data.with_format(None)[name], column.tolist(), strict=True)
            differing = {row for row, (stored, label) in enumerate(pairs) if stored != label}
            is_stored = differing <= {rows[index] for index in decisions}
        if is_stored:
            return _of_hugging_face(data, name, column).select(kept)
    column = column.iloc[kept]
    if target is None:
        corrected = as_passed_frame(data[0]).iloc[kept], _as_column(column, data[1])
        return list(corrected) if is_list(data) else corrected
    if is_list(data) or isinstance(data, Dataset) or library_of(data) == "datasets":
        items = CorrectedItems(data, kept, target, column)
        return [*items] if is_list(data) else items
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
        is_same = like.dtype.kind == "f" or column.dtype != float
        return column.to_numpy().astype(like.dtype if is_same else float, copy=False)
    return column
