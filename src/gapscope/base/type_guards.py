"""Type guards for values from outside (JSON, callers)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import TypeIs


def is_mapping(value: object) -> TypeIs[Mapping[Any, Any]]:
    """Return whether a value is a mapping, with keys and values of any type."""
    return isinstance(value, Mapping)


def is_dict(value: object) -> TypeIs[dict[Any, Any]]:
    """Return whether a value is a dictionary (a JSON object)."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeIs[list[Any]]:
    """Return whether a value is a list."""
    return isinstance(value, list)


def is_list_or_tuple(value: object) -> TypeIs[list[Any] | tuple[Any, ...]]:
    """Return whether a value is a list or a tuple."""
    return isinstance(value, list | tuple)


def has_length(value: Any) -> bool:
    """Return whether a value has a length: some classes have a `__len__` that fails, such as loaders of streams."""
    try:
        return len(value) >= 0
    except (TypeError, NotImplementedError, AssertionError):
        return False


def single_values(value: Any) -> list[Any]:
    """Return the numbers or texts of a column with one per sample; of anything else an empty list.

    Args:
        value: A column, a list or anything else.
    """
    values: list[Any] = []
    if getattr(value, "ndim", 0) == 1 and hasattr(value, "tolist"):
        values = value.tolist()
    elif is_list_or_tuple(value):
        values = list(value)
    return values if all(isinstance(item, int | float | str) for item in values) else []
