"""Some rows of data in any container."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from torch.utils.data import Dataset, Subset

from gapscope.base.columns import library_of
from gapscope.base.type_guards import is_list_or_tuple, is_mapping


def take_rows(value: Any, indices: np.ndarray) -> Any:
    """Return the rows at `indices` in the container's own form (None for None).

    Args:
        value: Tensor, array, table, sparse matrix, Dataset, sequence, or a mapping of these.
        indices: Numbers of rows.
    """
    if value is None:
        return None
    if is_mapping(value):
        return {name: take_rows(column, indices) for name, column in value.items()}
    if isinstance(value, Dataset):
        return Subset(cast("Dataset[Any]", value), indices.tolist())
    if hasattr(value, "iloc"):
        return value.iloc[indices]
    if is_list_or_tuple(value):
        return type(value)([value[index] for index in indices.tolist()])
    if library_of(value) == "pyarrow":
        return value.take(indices)
    if hasattr(value, "tocsr"):
        return value.tocsr()[indices]
    if isinstance(value, Sequence):  # such as a range, which takes no list of indices
        return [value[index] for index in indices.tolist()]
    return value[indices]
