"""`gapscope data`: list data sets and fetch their official files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from gapscope.cli.options import DATA_ROOT, JSON, complete_datasets

app = typer.Typer(help="List data sets and fetch their official files.", no_args_is_help=True)

_PLAIN_STEPS = 10


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """A bar per file on a terminal, else a line whenever another tenth of a file has arrived."""
    from gapscope.cli import progress

    if not progress.on_terminal():
        shown: dict[str, int] = {}

        def tell(file: str, arrived: int, total: int | None) -> None:
            step = _PLAIN_STEPS * arrived // total if total else arrived // 10_000_000
            if step > shown.get(file, 0):
                shown[file] = step
                of = f" of {total / 1e6:.1f}" if total else ""
                typer.echo(f"{file}: {arrived / 1e6:.1f}{of} MB", err=True)

        yield tell
        return
    from rich.progress import DownloadColumn, TransferSpeedColumn

    with progress.bar(DownloadColumn(), TransferSpeedColumn()) as bar:
        tasks = {}

        def draw(file: str, arrived: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file)
            bar.update(tasks[file], completed=arrived, total=total)

        yield draw


@app.command("list")
def list_data(data_root: str | None = DATA_ROOT, json: bool = JSON) -> None:
    """List the data sets: task, number of samples, licence and folder."""
    from gapscope.cli.output import print_json, print_rows
    from gapscope.data import data_root as root_of
    from gapscope.data import find_dataset
    from gapscope.data.catalogue import SOURCES

    rows: list[dict[str, Any]] = [
        {"name": source.name, "task": source.task, "train + test": source.sizes, "licence": source.licence,
         "where": find_dataset(source.name, root=data_root)}
        for source in SOURCES.values()
    ]  # fmt: skip
    if json:
        print_json(rows)
        return
    typer.echo(f"data root: {root_of(data_root)}; what is not here comes with `gapscope data fetch NAME`")
    for row in rows:
        row["where"] = Path(row["where"]).name if row["where"] else "not here"
    print_rows(rows, whole=("name", "task", "train + test", "licence"))


@app.command("fetch")
def fetch_data(
    name: str = typer.Argument(help="Name of a data set (`gapscope data list`).", autocompletion=complete_datasets),
    data_root: str | None = DATA_ROOT,
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
