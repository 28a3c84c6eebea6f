"""Progress of a pool: a bar on a terminal, one plain line a finished run elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from gapscope.results.records import Record

if TYPE_CHECKING:
    from rich.progress import Progress


def outcome(record: Record) -> str:
    """One line about a finished run."""
    network, data = record.spec["network"], record.spec.get("data")
    if data is None:  # trained elsewhere
        what = f"{record.id}  {record.spec['name']} ({network['name']})"
    else:
        what = f"{record.id}  {network['name']} on {data['name']}, label noise {data['label_noise']:g}"
    if record.status != "finished":
        return f"{what}: {record.status}: {record.message}"
    kind = "accuracy" if record.gap_kind == "accuracy" else "loss"
    if record.gap is None:
        return f"{what}: no test data ({record.seconds:.1f} s)"
    train, test = record.scores[f"train_{kind}"], record.scores[f"test_{kind}"]
    return f"{what}: train {kind} {train:.3f}, test {test:.3f}, gap {record.gap:.3f} ({record.seconds:.1f} s)"


@contextmanager
def handle_interrupts() -> Iterator[None]:
    """Let Ctrl-C or SIGTERM stop the body, with a message that the same command continues.

    Yields:
        Nothing.

    Raises:
        Exit: With code 130, where the body was stopped.
    """
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("\nstopped; finished work is saved. Run the same command again to continue.", err=True)
        raise typer.Exit(130) from None


def _bar() -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True))


@contextmanager
def steps(title: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on a terminal while the body runs, nothing elsewhere.

    Yields:
        A function to call with the numbers of steps done and of all.
    """
    if not sys.stderr.isatty():
        yield lambda done, of: None
        return
    with _bar() as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[Record], None]]:
    """Show progress while the body runs.

    Yields:
        A function to call with each finished record.
    """
    if not sys.stderr.isatty():
        done = 0

        def plain(record: Record) -> None:
            nonlocal done
            done += 1
            typer.echo(f"[{done}/{total}] {outcome(record)}", err=True)

        yield plain
        return
    with _bar() as bar:
        task = bar.add_task(title, total=total)

        def advance(record: Record) -> None:
            if record.status != "finished":
                bar.console.print(outcome(record), style="yellow", markup=False)
            bar.advance(task)

        yield advance
