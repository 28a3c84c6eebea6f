"""Order of rows: values per sample that pandas indexes, beside the data that they belong to."""

from __future__ import annotations

from typing import Any

from gapscope.base.columns import library_of
from gapscope.base.errors import InvalidInput
from gapscope.base.type_guards import is_list_or_tuple, is_mapping


def index_of_rows(data: Any, n: int) -> Any:
    """Return the index of the first pandas object with n rows in data, or None if there is none.

    Args:
        data: A pandas object, or a pair, list or mapping that may hold some; others have no index.
        n: Number of rows.
    """
    if library_of(data) == "pandas" and hasattr(data, "index") and len(data) == n:
        return data.index
    if is_mapping(data):
        parts = list(data.values())
    elif is_list_or_tuple(data) and len(data) < n:  # a list of n samples has no index
        parts = list(data)
    else:
        return None
    found = (index_of_rows(part, n) for part in parts)
    return next((index for index in found if index is not None), None)


def check_sample_order(data: Any, values: Any, name: str) -> None:
    """Check that values per sample do not have the index of the data in another order.

    Rows are matched by position. Data without an index have the row numbers 0 to n - 1, as pandas gives them.

    Args:
        data: Data as they were passed, such as a pair (x, y) of arrays or pandas objects; None for data without an
            index.
        values: One value or row per sample, of any type; only pandas objects have an index to compare.
        name: Name of the argument, for the message.

    Raises:
        InvalidInput: The values of both indexes are the same, and their order differs.
    """
    if library_of(values) != "pandas" or not hasattr(values, "index"):
        return
    import pandas

    second = values.index
    known = index_of_rows(data, len(second))
    first = pandas.RangeIndex(len(second)) if known is None else known
    if first.equals(second) or not (first.is_unique and second.is_unique):
        return
    if not bool(first.isin(second).all()):
        return
    if known is None:
        raise InvalidInput(
            f"Rows of {name} and of the data are matched by position; got {name} with the row numbers 0 to "
            f"{len(second) - 1} as index, in another order. Pass {name}.sort_index() if the index numbers the rows of "
            f"the data, or {name}.reset_index(drop=True) if their positions match."
        )
    raise InvalidInput(
        f"Rows of {name} and of the data are matched by position; got indexes with the same values in another order. "
        f"Pass {name}.reindex(x.index), x the data, to match them by index, or {name}.set_axis(x.index) if their "
        "positions match."
    )
