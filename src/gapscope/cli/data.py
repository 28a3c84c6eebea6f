"""`gapscope data`: list data sets and fetch their official files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from gapscope.cli.options import DATA_ROOT, JSON
from gapscope.cli.output import print_json, print_lines, print_rows

app = typer.Typer(help="List data sets and fetch their official files.", no_args_is_help=True)


def _line_per_tenth() -> Callable[[str, int, int | None], None]:
    """Return a callback that prints a line per tenth of a file, or per 10 MB of unknown size."""
    tenths: dict[str, int] = {}

    def report(file: str, received: int, total: int | None) -> None:
        tenth = 10 * received // (total or 100_000_000)
        if tenth > tenths.get(file, 0):
            tenths[file] = tenth
            of_total = f" of {total / 1e6:.1f}" if total else ""
            print_lines(f"{file}: {received / 1e6:.1f}{of_total} MB", err=True)

    return report


@app.command("list")
def list_data(data_root: str | None = DATA_ROOT, json: bool = JSON) -> None:
    """List the data sets: task, number of samples, licence and folder."""
    from gapscope.data import data_root as root_of
    from gapscope.data import find_dataset
    from gapscope.data.catalogue import SOURCES

    rows: list[dict[str, Any]] = [
        {
            "name": source.name,
            "task": source.task,
            "train + test": source.sizes,
            "licence": source.licence,
            "where": find_dataset(source.name, root=data_root),
        }
        for source in SOURCES.values()
    ]
    if json:
        keys = ("name", "task", "samples", "licence", "path")
        print_json({"data_sets": [dict(zip(keys, row.values(), strict=True)) for row in rows]})
        return
    print_lines(f"data root: {root_of(data_root)}; to fetch absent data: gapscope data fetch NAME")
    for row in rows:
        row["where"] = Path(row["where"]).name if row["where"] else "absent"
    print_rows(rows, unfolded=("name", "task", "train + test", "licence"))


@app.command("fetch")
def fetch_data(
    name: str = typer.Argument(help="Name of a data set (`gapscope data list`)."),
    data_root: str | None = DATA_ROOT,
    base_url: str | None = typer.Option(None, help="Other server with the same files."),
    json: bool = JSON,
) -> None:
    """Fetch the official files of a data set and verify their checksums."""
    from gapscope.data import fetch

    paths = fetch(name, root=data_root, base_url=base_url, progress=_line_per_tenth())
    if json:
        print_json({"files": [{"path": str(path), "bytes": path.stat().st_size} for path in paths]})
        return
    if not paths:
        print_lines(f"{name} is built in; there is nothing to fetch.")
    for path in paths:
        print_lines(f"{path}  {path.stat().st_size:,} bytes, checked")
