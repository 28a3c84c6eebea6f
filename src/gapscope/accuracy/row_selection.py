"""Rows of data in any container: arrays, frames, sparse matrices, lists, mappings and datasets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset, Subset

from gapscope.base.columns import check_row_order
from gapscope.base.errors import InvalidInput, check_same_length
from gapscope.base.samples import Samples, as_samples
from gapscope.base.type_guards import is_list_or_tuple

ROWS = (
    "a pair (x, y) of arrays, tensors, frames (pandas, polars), Arrow tables, sparse matrices or lists, a mapping of "
    "such columns for x, or a Dataset"
)


def n_rows(value: Any) -> int:
    """Return the number of rows of a container."""
    if isinstance(value, Mapping):
        return n_rows(next(iter(value.values())))
    shape = getattr(value, "shape", None)
    if shape:
        return int(shape[0])
    return len(value)


def take_rows(value: Any, indices: np.ndarray) -> Any:
    """Return the rows at `indices` in the container's own form (None for None)."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        return {name: take_rows(column, indices) for name, column in value.items()}
    if isinstance(value, Dataset):
        return Subset(value, indices.tolist())
    if hasattr(value, "iloc"):
        return value.iloc[indices]
    if is_list_or_tuple(value):
        return type(value)([value[index] for index in indices.tolist()])
    if type(value).__module__.split(".")[0] == "pyarrow":
        return value.take(indices)
    if hasattr(value, "tocsr"):
        return value.tocsr()[indices]
    return value[indices]


def inputs_of(samples: Samples) -> Any:
    """Return the inputs in the user's form: a tensor, a mapping of tensors or a tuple."""
    if samples.form is None:
        return samples.inputs
    parts = samples.form.unpack(samples.inputs)
    if samples.form.names is None:
        return parts
    return dict(zip(samples.form.names, parts, strict=True))


def as_rows(data: Any) -> tuple[Any, Any]:
    """Return inputs and targets as they were passed, without conversion.

    A Dataset stays whole: the inputs are the Dataset, the targets None. A mapping with labels, a loader and Samples are
    read into tensors.

    Raises:
        InvalidInput: The data have no targets or another form, or inputs and targets differ in length.
    """
    if isinstance(data, Dataset):
        if not hasattr(data, "__len__"):
            raise InvalidInput(
                f"data must have a length; got a {type(data).__name__} without one. Read it into a list."
            )
        return data, None
    if isinstance(data, Samples | DataLoader | Mapping):
        samples = as_samples(data)
        return inputs_of(samples), samples.y
    if not is_list_or_tuple(data) or len(data) != 2:
        raise InvalidInput(f"data must be {ROWS}; got {type(data).__name__}. Pass (x, y).")
    x, y = data
    check_same_length("inputs", n_rows(x), "targets", n_rows(y))
    check_row_order(x, y)
    return x, y
