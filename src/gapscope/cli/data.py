"""`gapscope data`: list data sets and fetch their official files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from gapscope.cli.completion import complete_datasets
from gapscope.cli.options import DATA_ROOT, JSON

app = typer.Typer(help="List data sets and fetch their official files.", no_args_is_help=True)

_PLAIN_STEPS = 10


def _plain_progress() -> Callable[[str, int, int | None], None]:
    """A line whenever another tenth of a file has arrived."""
    shown: dict[str, int] = {}

    def report(file: str, arrived: int, total: int | None) -> None:
        step = _PLAIN_STEPS * arrived // total if total else arrived // 10_000_000
        if step > shown.get(file, 0):
            shown[file] = step
            of = f" of {total / 1e6:.1f}" if total else ""
            typer.echo(f"{file}: {arrived / 1e6:.1f}{of} MB", err=True)

    return report


def _on_terminal() -> bool:
    return sys.stderr.isatty()


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """A bar a file on a terminal, plain lines elsewhere."""
    if not _on_terminal():
        yield _plain_progress()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        tasks = {}

        def report(file: str, arrived: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file)
            bar.update(tasks[file], completed=arrived, total=total)

        yield report


@app.command("list")
def list_data(data_root: Path | None = DATA_ROOT, json: bool = JSON) -> None:
    """List the data sets: task, number of samples, licence and folder."""
    from rich import box
    from rich.table import Table

    from gapscope.cli.output import print_json, print_rich
    from gapscope.data import data_root as root_of
    from gapscope.data import find_dataset
    from gapscope.data.catalogue import SOURCES

    rows = [
        {"name": source.name, "task": source.task, "train + test": source.sizes, "licence": source.licence,
         "where": find_dataset(source.name, root=data_root)}
        for source in SOURCES.values()
    ]  # fmt: skip
    if json:
        print_json(rows)
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in ("name", "task", "train + test", "licence", "where"):
        table.add_column(column, overflow="fold", no_wrap=column != "where")
    for row in rows:
        folder = row.pop("where")
        table.add_row(*row.values(), Path(folder).name if folder else "not here")
    typer.echo(f"data root: {root_of(data_root)}; what is not here comes with `gapscope data fetch NAME`")
    print_rich(table)


@app.command("fetch")
def fetch_data(
    name: str = typer.Argument(help="Name of a data set (`gapscope data list`).", autocompletion=complete_datasets),
    data_root: Path | None = DATA_ROOT,
    base_url: str | None = typer.Option(None, "--base-url", help="Other server with the same files."),
    json: bool = JSON,
) -> None:
    """Fetch the official files of a data set and verify their checksums."""
    from gapscope.cli.output import print_json
    from gapscope.data import fetch

    with _progress() as report:
        paths = fetch(name, root=data_root, base_url=base_url, progress=report)
    if json:
        print_json([{"path": str(path), "bytes": path.stat().st_size} for path in paths])
        return
    if not paths:
        typer.echo(f"{name} is built in; there is nothing to fetch.")
    for path in paths:
        typer.echo(f"{path}  {path.stat().st_size:,} bytes, checked")
