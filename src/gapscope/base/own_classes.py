"""Names that a data set has for the class numbers of its labels, and the data set behind loaders and subsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gapscope.base.columns import library_of
from gapscope.base.type_guards import is_list_or_tuple, is_mapping


def underlying(data: Any) -> tuple[Any, Sequence[int] | None]:
    """Return the data set behind loaders and subsets, and the rows of it that are used (None for all).

    Args:
        data: Data as the user passed them.
    """
    rows: list[int] | None = None
    if library_of(data) == "pandas":  # a frame has its columns as attributes
        return data, rows
    while getattr(data, "dataset", None) is not None:
        indices = getattr(data, "indices", None)
        if indices is not None:
            chosen = [int(index) for index in indices]
            if rows is None:
                rows = chosen
            else:
                rows = [chosen[row] for row in rows]
        data = data.dataset
    return data, rows


def own_class_names(data: Any, label_names: Sequence[str]) -> tuple[str, ...]:
    """Return the names that a data set has for its class numbers; empty if it has none.

    They are `classes`, as in torchvision, or the names of a `ClassLabel` of Hugging Face datasets.

    Args:
        data: Data as the user passed them, also behind loaders and subsets.
        label_names: Names that a column of labels may have, in their order.
    """
    data_set, _ = underlying(data)
    names = getattr(data_set, "classes", None)
    features: Any = getattr(data_set, "features", None)
    if names is None and is_mapping(features):
        label = next((name for name in label_names if name in features), "")
        names = getattr(features.get(label), "names", None)
    if not is_list_or_tuple(names) or len(set(map(str, names))) != len(names):
        return ()
    return tuple(str(name) for name in names)
