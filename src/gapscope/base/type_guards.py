"""What kind of value came from outside (JSON, a caller), asked so that the type checker learns the answer too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import TypeIs


def is_mapping(value: object) -> TypeIs[Mapping[Any, Any]]:
    """Whether a value is a mapping; unlike after `isinstance`, its keys and values are then known to be of any type."""
    return isinstance(value, Mapping)


def is_dict(value: object) -> TypeIs[dict[Any, Any]]:
    """Whether a value is a dictionary, as JSON objects are."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeIs[list[Any]]:
    """Whether a value is a list."""
    return isinstance(value, list)


def is_list_or_tuple(value: object) -> TypeIs[list[Any] | tuple[Any, ...]]:
    """Whether a value is a list or a tuple."""
    return isinstance(value, list | tuple)
