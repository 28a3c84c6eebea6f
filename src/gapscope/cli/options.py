"""Options that several commands share."""

from __future__ import annotations

import typer

# exit status of a command that has no answer (2 is a wrong command line)
NO_ANSWER = 3
NETWORK = "a weights file of a pool, a checkpoint for --load, or module:function that returns (network, training data)"
DATA_ROOT = typer.Option(
    None,
    help="Folder of the data sets. Default: GAPSCOPE_DATA, else the user cache.",
)
JSON = typer.Option(False, "--json", help="Print the results as JSON.")
SIDE = typer.Option(64, help="Height and width of the pictures of a folder, in pixels.")
LABEL_COLUMN = typer.Option(None, "--target", help="Label column of a table. Default: the last.")
GROUPS = typer.Option(
    None,
    help="Column of groups (patient, author) of a table: samples are predicted without their whole group. It is no "
    "input.",
)
LOAD = typer.Option(
    None,
    help="module:function that maps the path of a checkpoint to (network, training data).",
)
NETWORKS = typer.Argument(metavar="NETWORK...", help=f"One or more: {NETWORK}.")
ONE_NETWORK = typer.Argument(help=f"One network: {NETWORK}.")
SAMPLES = typer.Option(None, help="Number of training samples to measure on. Default: all.")
SEED = typer.Option(0, help="Random seed.")
TIME_BUDGET = typer.Option(60.0, help="Approximate CPU seconds per network; `inf` for no limit.")
POOL = typer.Argument(help="Folder of a pool.")
WORKERS = typer.Option(2, help="Number of processes, one thread each.")
