"""Names that a data set has for the class numbers of its labels, and the data set behind loaders and subsets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from torch.utils.data import ChainDataset, ConcatDataset

from gapscope.base.columns import library_of
from gapscope.base.errors import InvalidInput, join_names
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


def _parts(data: Any, rows: Sequence[int] | None = None) -> Iterator[Any]:
    """Yield the data sets behind loaders and subsets, also those of `ConcatDataset` and `ChainDataset`.

    Args:
        data: Data as the user passed them.
        rows: Rows of them that are used; None for all. Data sets without such a row are omitted.
    """
    data, chosen = underlying(data)
    if chosen is None:
        chosen = rows
    elif rows is not None:
        chosen = [chosen[row] for row in rows]
    is_chain = isinstance(data, ChainDataset)
    if not is_chain and not isinstance(data, ConcatDataset):
        yield data
        return
    joined = cast("Any", data)
    ends: Sequence[int] | None = None if is_chain else joined.cumulative_sizes
    if ends and chosen is not None:
        chosen = [row % ends[-1] for row in chosen]
    start = 0
    for k, part in enumerate(joined.datasets):
        used = None
        if ends is not None and chosen is not None:
            used = [row - start for row in chosen if start <= row < ends[k]]
        if ends is not None:
            start = ends[k]
        if used is None or used:
            yield from _parts(part, used)


def _class_names(data_set: Any, label_names: Sequence[str]) -> tuple[str, ...]:
    """Return the names that one data set has for its class numbers."""
    names = getattr(data_set, "classes", None)
    features: Any = getattr(data_set, "features", None)
    if names is None and is_mapping(features):
        label = next((name for name in label_names if name in features), "")
        names = getattr(features.get(label), "names", None)
    if not is_list_or_tuple(names) or len(set(map(str, names))) != len(names):
        return ()
    return tuple(str(name) for name in names)


def own_class_names(data: Any, label_names: Sequence[str]) -> tuple[str, ...]:
    """Return the names that a data set has for its class numbers; empty if it has none.

    They are `classes`, as in torchvision, or the names of a `ClassLabel` of Hugging Face datasets.

    Args:
        data: Data as the user passed them, also behind loaders and subsets, or several data sets one after the other.
        label_names: Names that a column of labels may have, in their order.

    Raises:
        InvalidInput: Of several data sets, two give one number to different classes.
    """
    found = [_class_names(part, label_names) for part in _parts(data)]
    longest = max(found, key=len, default=())
    for names in found:
        clash = next((k for k, name in enumerate(names) if name != longest[k]), None)
        if clash is not None:
            raise InvalidInput(
                f"Joined data sets must number their classes alike; class {clash} is {longest[clash]!r} in one and "
                f"{names[clash]!r} in another ({len(longest)} and {len(names)} classes). Give all the classes "
                f"{join_names(sorted({*longest, *names}))} in one order, such as by a target_transform, or by "
                "gapscope.data.ImageFolder(folder, classes=...)."
            )
    return longest if all(found) else ()
