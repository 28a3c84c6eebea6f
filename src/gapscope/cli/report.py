"""`gapscope report`: one self-contained HTML page about a pool."""

from __future__ import annotations

from pathlib import Path

import typer


def report(
    pool: Path = typer.Argument(..., help="Folder of a pool."),
    output: Path | None = typer.Option(None, help="Where to write the page; default POOL/report.html."),
    title: str | None = typer.Option(None, help="Title of the page; default the folder's name."),
) -> None:
    """Write one HTML page about a pool: no network needed, readable on a phone and in the dark."""
    from gapscope.pools import open_pool
    from gapscope.report import write_report

    records = open_pool(pool).records()
    path = write_report(records, output or pool / "report.html", title=title or pool.resolve().name)
    typer.echo(f"written: {path} ({path.stat().st_size / 1e3:.0f} kB, {len(records)} networks)")
