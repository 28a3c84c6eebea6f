"""`gapscope pool run | status`: train and measure the networks of a grid, resumable at any moment."""

from __future__ import annotations

from pathlib import Path

import typer

app = typer.Typer(help="Train and measure many networks; run the same command again to go on.", no_args_is_help=True)

GRID = typer.Argument(..., help="TOML file with the grid: tables base, [\\[cases]], axes, and a list measures.")
FOLDER = typer.Argument(..., help="The pool's folder.")
JSON = typer.Option(False, "--json", help="Print everything as JSON.")


@app.command("run")
def run(
    grid: Path = GRID,
    folder: Path = FOLDER,
    workers: int = typer.Option(2, help="Processes, one thread each."),
    stack: int = typer.Option(1, help="Networks of one architecture that a worker trains in one stack, at most."),
    engine: str = typer.Option("local", help="'local' processes, or 'ray' for a cluster."),
    address: str | None = typer.Option(None, help="Of a running Ray cluster, such as 10.0.0.1:6379."),
    gpus: float = typer.Option(0.0, help="GPUs of each network on a Ray cluster; a fraction shares one."),
    copies: str | None = typer.Option(None, help="Where finished runs are copied to, such as s3://bucket/pool."),
    data_root: Path | None = typer.Option(None, help="Where the data lie (else GAPSCOPE_DATA, else the user cache)."),
    device: str = typer.Option("cpu", help="Torch device of every network."),
    measure_samples: int | None = typer.Option(None, help="Measure on this many training samples; default all."),
    retry_failed: bool = typer.Option(False, help="Run failed networks again."),
    json: bool = JSON,
) -> None:
    """Train, score and measure what is missing of a grid. Finished networks are never run twice."""
    from gapscope.base.files import to_json
    from gapscope.cli.progress import handle_interrupts, progress
    from gapscope.pools import Grid, Pool

    specs, pool = Grid.from_toml(grid), Pool(folder)
    missing = len(pool.missing(specs, measures=specs.measures, retry_failed=retry_failed))
    typer.echo(f"{len(specs)} networks, {len(specs) - missing} done, {missing} to run with {workers} workers", err=json)
    with handle_interrupts(), progress(f"pool {folder}", missing) as show:
        records = pool.run(
            specs,
            workers=workers,
            stack=stack,
            engine=engine,
            address=address,
            gpus=gpus,
            mirror=copies,
            data_root=data_root,
            device=device,
            measure_samples=measure_samples,
            retry_failed=retry_failed,
            on_record=show,
        )
    counts = {status: sum(r.status == status for r in records) for status in ("finished", "diverged", "failed")}
    if json:
        rows = [
            {"id": record.id, "status": record.status, "message": record.message, "gap": record.gap, **record.scores}
            for record in records
        ]
        typer.echo(to_json({"folder": str(folder), **counts, "networks": rows}, indent=1))
    else:
        typer.echo(", ".join(f"{count} {status}" for status, count in counts.items()) + f"; records in {folder}")
    if counts["failed"]:
        first = next(record for record in records if record.status == "failed")
        typer.echo(f"the first that failed: {first.id}: {first.message}", err=True)
        typer.echo("failed networks are run again with --retry-failed", err=True)
    if not counts["finished"]:
        typer.echo("no network finished", err=True)
        raise typer.Exit(1)
    if not json:
        typer.echo(f"next: gapscope report {folder}")


@app.command("status")
def status(grid: Path = GRID, folder: Path = FOLDER, json: bool = JSON) -> None:
    """How far the runs of a grid are."""
    from dataclasses import asdict

    from gapscope.base.files import to_json
    from gapscope.pools import Grid, Pool

    state = Pool(folder).status(Grid.from_toml(grid))
    if json:
        typer.echo(to_json({"total": state.total, **asdict(state)}))
        return
    typer.echo(
        f"{state.total} networks: {state.finished} finished, {state.diverged} diverged, {state.failed} failed, "
        f"{state.started} started, {state.waiting} waiting"
        + (f", {state.unreadable} unreadable" if state.unreadable else "")
    )
