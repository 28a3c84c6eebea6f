"""Output of commands: standard JSON, and tables that are never truncated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    import pandas

# wider than any table: what is piped has no screen to fit
_PIPED = 1000


def print_json(value: Any) -> None:
    """Print a result or values as JSON (missing and infinite numbers are null)."""
    from gapscope.base.files import to_json
    from gapscope.results.result import Result

    typer.echo(to_json(value.to_dict() if isinstance(value, Result) else value, indent=1, null=True))


def print_table(content: pandas.DataFrame, title: str) -> None:
    """Print a data frame as a table, as `print_rich`."""
    from gapscope.cli.tables import table_of

    print_rich(table_of(content, title))


def print_rich(table: Any) -> None:
    """Print a table of rich, fitted to the terminal, or with all its columns if it is piped."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPED)
    console.print(table)
