"""Columns that a table of networks must have, and which of its gaps may be compared."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from gapscope.base.errors import InvalidInput, did_you_mean, join_names

if TYPE_CHECKING:
    import pandas

# columns of settings
SETTINGS = ("data.", "network.", "training.", "hp.")


def check_names(table: pandas.DataFrame, columns: Iterable[Any]) -> None:
    """Raise InvalidInput if names of columns have several levels, or if one of `columns` is that of several columns.

    Args:
        table: Any table.
        columns: Names of columns.

    Raises:
        InvalidInput: Names do not tell columns apart.
    """
    if table.columns.nlevels > 1:
        raise InvalidInput(
            f"Columns must have names of one level; got those of {table.columns.nlevels}, such as "
            f"{table.columns[0]!r}. Join them: frame.columns = ['_'.join(map(str, name)) for name in frame.columns]."
        )
    several = set(table.columns[table.columns.duplicated()])
    repeated = [repr(name) for name in dict.fromkeys(columns) if name in several]
    if repeated:
        raise InvalidInput(
            f"A table must have one column of each name; got {join_names(repeated)} several times. Rename or drop the "
            "others."
        )


def with_numbers(table: pandas.DataFrame, names: Iterable[str]) -> pandas.DataFrame:
    """Return a table with these columns as numbers.

    Args:
        table: One row per network.
        names: Its columns that must hold numbers.

    Raises:
        InvalidInput: A column has other values.
    """
    import pandas

    for name in names:
        if table[name].dtype.kind in "biuf":
            continue
        try:
            table = table.assign(**{name: pandas.to_numeric(table[name])})
        except (ValueError, TypeError) as error:
            raise InvalidInput(
                f"Column {name!r} must hold numbers; {error}. Correct or drop it."
            ) from None
    return table


def check_columns(table: pandas.DataFrame, columns: Iterable[str]) -> None:
    """Raise InvalidInput, naming the nearest column, unless the table has all `columns`, these and settings once."""
    columns = list(columns)
    check_names(table, [*columns, *(n for n in table.columns if str(n).startswith(SETTINGS))])
    names = [str(column) for column in table.columns]
    for column in columns:
        if column not in table.columns:
            raise InvalidInput(
                f"The table must have a column {column!r}; it has {', '.join(names) or 'none'}."
                f"{did_you_mean(column, names)}"
            )


def check_comparable(table: pandas.DataFrame, target: str = "gap") -> None:
    """Raise InvalidInput unless the gaps of all rows can be compared.

    Gaps of accuracy and of loss differ in unit and sign, and so do losses of different data sets. Accuracies of
    different data sets are compared only if a setting states the data set, as `data.name` does in a grid.

    Args:
        table: One row per network, as from `records_to_pandas`; other tables have no kinds of gaps.
        target: Column that is compared; only gaps are checked.

    Raises:
        InvalidInput: The gaps have several units, or are of data sets that no setting states.
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
    if "data_form" not in table.columns:  # only networks that were trained elsewhere have it
        return
    forms = table["data_form"].dropna().unique()
    if len(forms) > 1 and ("loss" in counts or not _is_stated(table)):
        if "loss" not in counts:
            advice += ", or add them to a new pool with settings={'data': NAME}"
        raise InvalidInput(
            f"Gaps that are compared must be of one data set; got networks with {', with '.join(forms[:3])}. {advice}."
        )


def _is_stated(table: pandas.DataFrame) -> bool:
    """Return whether a setting that several networks share tells networks of different data apart."""
    for name in table.columns:
        if str(name).startswith(SETTINGS) and not str(name).endswith("seed"):
            groups = table.groupby(name, dropna=False)["data_form"]
            if groups.nunique().max() == 1 and 1 < groups.ngroups <= len(table) / 2:
                return True
    return False
