"""Which columns of a table of networks are settings, which are readings, and which rows can be used."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy
from jaxtyping import Bool, Float

from gapscope.base.errors import InvalidInput, did_you_mean
from gapscope.results.readings import Direction
from gapscope.results.records import Record

if TYPE_CHECKING:
    import pandas

Array = numpy.ndarray
SETTINGS = ("data.", "network.", "training.", "hp.")


def check_columns(table: pandas.DataFrame, columns: Iterable[str]) -> None:
    """Raise InvalidInput, naming the nearest column, unless the table has every one of `columns`.

    Args:
        table: One row per network.
        columns: Names that are needed.

    Raises:
        InvalidInput: A column is missing.
    """
    known = [str(column) for column in table.columns]
    for column in columns:
        if column not in table.columns:
            raise InvalidInput(
                f"The table must have a column {column!r}; it has {', '.join(known) or 'none'}."
                f"{did_you_mean(column, known)}"
            )


def check_numbers(columns: pandas.DataFrame, finite: bool) -> None:
    """Raise InvalidInput, naming the column, where a reading is text or (if asked) not finite.

    Args:
        columns: Readings.
        finite: Whether each must be finite.

    Raises:
        InvalidInput: One is not.
    """
    for name in columns.columns:
        try:
            values = columns[name].to_numpy(dtype=float)
        except (TypeError, ValueError):
            raise InvalidInput(
                f"Every reading must be a number; column {name!r} holds {columns[name].iloc[0]!r}. "
                "Name the readings to use in features."
            ) from None
        bad = int((~numpy.isfinite(values)).sum())
        if finite and bad:
            raise InvalidInput(
                f"Every reading must be finite; column {name!r} holds NaN or infinity in {bad} of {len(values)} rows. "
                "Drop these networks, or leave the column out of features."
            )


def reading_columns(records: Iterable[Record], *, varying: bool = True) -> list[str]:
    """Names of the readings that finished networks hold, in the order in which they were measured.

    These are what a gap may be estimated from: settings, scores, the gap itself and standard errors are left out.

    Args:
        records: The records.
        varying: Whether a reading that has one and the same value in every network is left out.

    Returns:
        Column names of `records_to_pandas(records)`.

    >>> from gapscope.results.readings import Reading, Readings
    >>> def record(value):
    ...     readings = Readings([Reading(measure="norm", number="norm", value=value)])
    ...     return Record(id=str(value), spec={}, status="finished", readings=readings)
    >>> reading_columns([record(1.0), record(2.0)]), reading_columns([record(1.0), record(1.0)])
    (['norm'], [])
    """
    values: dict[str, set[float]] = {}
    for record in records:
        if record.status == "finished":
            for reading in record.readings:
                values.setdefault(reading.name, set()).add(reading.value)
    return [name for name, seen in values.items() if len(seen) > 1 or not varying]


def reading_directions(records: Iterable[Record]) -> dict[str, Direction]:
    """Stated direction of each reading: which way goes with a smaller gap ("lower", "higher" or "none")."""
    return {reading.name: reading.direction for record in records for reading in record.readings}


def hyperparameter_columns(table: pandas.DataFrame) -> list[str]:
    """Columns that hold settings (of data, network or training, and the seed) and take at least two values.

    Args:
        table: One row per network, as from `records_to_pandas`.

    Returns:
        The column names, in the table's order. A missing setting counts as a value of its own.

    >>> import pandas
    >>> table = pandas.DataFrame({"network.name": ["a", "b"], "training.epochs": [9, 9], "gap": [0.1, 0.2]})
    >>> hyperparameter_columns(table)
    ['network.name']
    """
    settings = [column for column in table.columns if column == "seed" or str(column).startswith(SETTINGS)]
    return [column for column in settings if takes_several(table[column])]


def takes_several(column: Any) -> bool:
    """Whether a column holds two different texts at least, a missing value counting as one."""
    # numbers of one kind that are equal are written alike, and the different ones are few
    values = column if column.dtype == object else column.unique()
    return len({str(value) for value in values}) > 1


def finite_rows(numbers: Float[Array, "n p"]) -> Bool[Array, " n"]:
    """Which rows hold finite numbers only."""
    return numpy.all(numpy.isfinite(numbers), axis=1)


def complete_rows(table: pandas.DataFrame, columns: Sequence[str] = (), *, target: str = "gap") -> pandas.DataFrame:
    """Rows of finished networks whose target and `columns` are all finite numbers.

    Args:
        table: One row per network.
        columns: Readings that must be finite.
        target: What is estimated.

    Returns:
        The rows, unchanged and in order.

    Raises:
        InvalidInput: A column is missing, or no row is left.
    """
    check_columns(table, [*columns, target])
    keep = finite_rows(table[[*columns, target]].to_numpy(dtype=float))
    if "status" in table.columns:
        keep &= (table["status"] == "finished").to_numpy()
    if not keep.any():
        raise InvalidInput(
            f"At least one network must be finished and have finite {', '.join([*columns, target])}; got none of "
            f"{len(table)}. Leave out the readings that are missing."
        )
    return table.loc[keep]


def as_texts(column: Any) -> Any:
    """Return the values of a column as an array of texts that can be sorted; what is missing is the text "nan".

    pandas' own `astype(str)` leaves missing values as they are, beside which nothing can be sorted.

    Args:
        column: A Series.

    Returns:
        Array [n] of texts.
    """
    return numpy.array([str(value) for value in column])
