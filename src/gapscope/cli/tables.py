"""Tables in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Number
from typing import TYPE_CHECKING, Any

import typer

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
    """Name specs by the settings that differ within the grid, else by the network."""
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


def _to_numbers(features: pandas.DataFrame) -> pandas.DataFrame:
    """Encode text columns as indicators and fill missing numbers with the median."""
    import pandas

    text = [name for name in features if not pandas.api.types.is_numeric_dtype(features[name])]
    names = [name for name in text if features[name].nunique() > max(20, len(features) // 2)]
    text = [name for name in text if name not in names]
    missing = int(features.drop(columns=[*text, *names]).isna().sum().sum())
    notes = [f"{', '.join(map(str, names))}: column dropped: nearly every row has its own text"] if names else []
    notes += [f"{', '.join(map(str, text))}: one column per value"] if text else []
    notes += [f"{missing} missing numbers: filled with the median of their column"] if missing else []
    for note in notes:
        typer.echo(note, err=True)
    encoded = pandas.get_dummies(features.drop(columns=names), columns=text, dtype=float)
    return encoded.fillna(encoded.median())


def read_labelled_csv(
    path: Path, target: str | None, *, like: pandas.DataFrame | None = None
) -> tuple[pandas.DataFrame, pandas.Series]:
    """Read a CSV file as features, text and missing values encoded as numbers, and labels.

    Args:
        target: Column of the labels; None for the last one.
        like: Features of another file whose columns these get.

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
    features = _to_numbers(table.drop(columns=target))
    if like is not None:
        features = features.reindex(columns=like.columns, fill_value=0.0)
    return features, table[target]
