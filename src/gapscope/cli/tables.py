"""Tables in the terminal."""

from __future__ import annotations

from numbers import Number
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
