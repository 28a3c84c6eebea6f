"""Columns that a table must have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gapscope.base.errors import InvalidInput, did_you_mean

if TYPE_CHECKING:
    import pandas


def check_columns(table: pandas.DataFrame, columns: Iterable[str]) -> None:
    """Raise InvalidInput, naming the nearest column, unless the table has all `columns`."""
    names = [str(column) for column in table.columns]
    for column in columns:
        if column not in table.columns:
            raise InvalidInput(
                f"The table must have a column {column!r}; it has {', '.join(names) or 'none'}."
                f"{did_you_mean(column, names)}"
            )
