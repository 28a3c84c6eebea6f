"""Options that several commands share, and completion of names in the shell."""

from __future__ import annotations

import typer


def complete_datasets(incomplete: str) -> list[str]:
    """Return the names of data sets that start with the text."""
    from gapscope.data import dataset_names

    return [name for name in dataset_names() if name.startswith(incomplete)]


def complete_measures(incomplete: str) -> list[str]:
    """Return the names of measures that start with the text."""
    from gapscope.measures.registry import list_measures

    return [name for name in list_measures() if name.startswith(incomplete)]


NETWORK = "a weights file of a pool, or module:function that returns (network, training data)"
DATA_ROOT = typer.Option(
    None, "--data-root", help="Folder of the data sets. Default: GAPSCOPE_DATA, else the user cache."
)
JSON = typer.Option(False, "--json", help="Print the results as JSON.")
LABEL_COLUMN = typer.Option(None, "--target", help="Label column of a CSV file. Default: the last.")
POOL = typer.Argument(..., help="Folder of a pool.")
WORKERS = typer.Option(2, help="Number of processes, one thread each.")
