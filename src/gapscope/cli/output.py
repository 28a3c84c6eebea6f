"""Output of commands: standard JSON, and tables that are never truncated."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from numbers import Number
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from pathlib import Path

    import pandas

# wider than any table: piped output has no screen to fit
_PIPED = 1000


def check_outputs(*paths: Path | None) -> None:
    """Raise NotWritten before the work, if a file cannot be written (None: no file)."""
    from gapscope.base.files import check_output

    for path in paths:
        if path is not None:
            check_output(path)


def print_json(value: Any) -> None:
    """Print a result or values as JSON (missing and infinite numbers are null)."""
    from gapscope.base.files import to_json
    from gapscope.results.result import Result

    typer.echo(to_json(value.to_dict() if isinstance(value, Result) else value, indent=1, null=True))


def print_text(sentences: Iterable[str]) -> None:
    """Print sentences, each wrapped to the width of the terminal."""
    for sentence in sentences:
        typer.echo(textwrap.fill(sentence, shutil.get_terminal_size().columns))


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value)
    if isinstance(value, float):
        if value != value:
            return "-"
        if value.is_integer() and abs(value) < 1e6:
            return f"{value:.0f}"
        return f"{value:.3f}" if 1e-2 <= abs(value) < 1e3 or value == 0 else f"{value:.4g}"
    return str(value)


def print_table(content: pandas.DataFrame, title: str) -> None:
    """Print a data frame as a table with short, right-aligned numbers and unfolded text."""
    # a column is numeric if most of its cells are: a transposed table has text among its numbers
    cells = {str(name): content[name].tolist() for name in content.columns}
    right = [name for name, each in cells.items() if 2 * sum(isinstance(c, Number) for c in each) > len(each)]
    rows = [dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)]
    print_rows(rows, title, right=right, unfolded=list(cells))


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    title: str | None = None,
    *,
    right: Iterable[str] = (),
    unfolded: Iterable[str] = (),
) -> None:
    """Print rows as a table that fits the terminal, or at full width if the output is piped.

    Columns in `right` are aligned right, columns in `unfolded` never break their text into lines.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", padding=(0, 1, 0, 0), pad_edge=False)
    for name in rows[0] if rows else ():
        table.add_column(name, justify="right" if name in right else "left", no_wrap=name in unfolded, overflow="fold")
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    console = Console()
    (console if console.is_terminal else Console(width=_PIPED)).print(table)
