"""Columns that a table of networks must have, and which of its gaps may be compared."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gapscope.base.errors import InvalidInput, did_you_mean, join_names

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


def check_comparable(table: pandas.DataFrame, target: str = "gap") -> None:
    """Raise InvalidInput unless the gaps of all rows have one unit.

    Gaps of accuracy and of loss differ in unit and sign, and so do losses of different data sets.

    Args:
        table: One row per network, as from `records_to_pandas`; other tables have no kinds of gaps.
        target: Column that is compared; only gaps are checked.

    Raises:
        InvalidInput: The gaps have several units.
    """
    if target != "gap" or "gap_kind" not in table.columns:
        return
    counts = table["gap_kind"].value_counts()
    advice = "Compare the networks of each in a pool or table of their own"
    if len(counts) > 1:
        listed = " and ".join(f"{count} of {kind}" for kind, count in counts.items())
        raise InvalidInput(
            f"Gaps that are compared must be of one kind; got {listed}. {advice}: table[table['gap_kind'] == 'loss']."
        )
    if "loss" in counts and "data.name" in table.columns and table["data.name"].nunique() > 1:
        names = join_names(sorted(map(str, table["data.name"].dropna().unique())))
        raise InvalidInput(
            f"Gaps of losses must be of one data set to have one unit; got those of {names}. {advice}."
        )
