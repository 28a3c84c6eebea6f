"""Tables in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Number
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    import pandas
    from rich.table import Table


def _cell(value: Any) -> str:
    if isinstance(value, float):
        if value != value:
            return "-"
        if value.is_integer() and abs(value) < 1e6:
            return f"{value:.0f}"
        return f"{value:.3f}" if 1e-2 <= abs(value) < 1e3 or value == 0 else f"{value:.4g}"
    return str(value)


def table_of(content: pandas.DataFrame, title: str) -> Table:
    """Return a data frame as a table: numbers short, aligned right."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", padding=(0, 1, 0, 0), pad_edge=False)
    for name in content.columns:
        # most of its cells: a table that was turned has words among its numbers
        cells = content[name].tolist()
        numeric = 2 * sum(isinstance(cell, Number) for cell in cells) > len(cells)
        table.add_column(str(name), justify="right" if numeric else "left", no_wrap=True)
    for row in content.itertuples(index=False):
        table.add_row(*map(_cell, row))
    return table


def varied_settings(specs: Sequence[Any]) -> list[str]:
    """Name each spec of a grid by the settings that differ within the grid, or by its network if none does."""
    tables = [
        {f"{table}.{name}": value for table in ("data", "network", "training", "normalization")
         for name, value in getattr(spec, table).to_dict().items()} | {"seed": spec.seed}
        for spec in specs
    ]  # fmt: skip
    flat = [
        {
            f"{key}.{k}": v
            for key, value in row.items()
            for k, v in (value if isinstance(value, dict) else {"": value}).items()
        }
        for row in tables
    ]  # fmt: skip
    keys = dict.fromkeys(key for row in flat for key in row)
    varied = [key for key in keys if len({repr(row.get(key)) for row in flat}) > 1]
    names = []
    for spec, row in zip(specs, flat, strict=True):
        parts = [f"{key.rstrip('.').split('.')[-1]}={row[key]}" for key in varied if key in row]
        names.append(", ".join(parts) or spec.network.name)
    return names


def read_labelled_csv(path: Path, target: str | None) -> tuple[pandas.DataFrame, pandas.Series]:
    """Read a CSV file as features and labels.

    Args:
        path: The file.
        target: Column of the labels; None for the last one.

    Returns:
        Features and labels.

    Raises:
        InvalidInput: There is no such file or column.
    """
    import pandas

    from gapscope.base.errors import InvalidInput, did_you_mean

    if not path.is_file():
        raise InvalidInput(f"{path} must be a TOML grid, a CSV file or module:function; there is no such file.")
    table = pandas.read_csv(path)
    if table.shape[1] < 2:
        raise InvalidInput(
            f"{path} must have a column of labels and at least one of features; got {list(table.columns)}."
        )
    target = target if target is not None else str(table.columns[-1])
    if target not in table:
        raise InvalidInput(f"{path} has no column {target!r}.{did_you_mean(target, [str(name) for name in table])}")
    return table.drop(columns=target), table[target]
