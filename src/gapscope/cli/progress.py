"""Progress of a command: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.progress import Progress

    from gapscope.results.records import Record


def on_terminal() -> bool:
    """Return True if a bar can be shown."""
    return sys.stderr.isatty()


def bar(*columns: Any) -> Progress:
    """Return bars on standard error with further columns."""
    from rich.console import Console
    from rich.progress import Progress

    return Progress(*Progress.get_default_columns(), *columns, console=Console(stderr=True))


def outcome(record: Record) -> str:
    """One line about a finished run."""
    network, data = record.spec["network"], record.spec.get("data")
    if data is None:  # trained elsewhere
        what = f"{record.id}  {record.spec['name']} ({network['name']})"
    else:
        what = f"{record.id}  {network['name']} on {data['name']}, label noise {data['label_noise']:g}"
    if record.status != "finished":
        return f"{what}: {record.status}: {record.message}"
    kind, gap = record.gap_kind, record.gap
    if gap != gap:
        return f"{what}: no test data ({record.seconds:.1f} s)"
    train, test = record.scores[f"train_{kind}"], record.scores[f"test_{kind}"]
    return f"{what}: train {kind} {train:.3f}, test {test:.3f}, gap {gap:.3f} ({record.seconds:.1f} s)"


@contextmanager
def handle_interrupts() -> Iterator[None]:
    """Let Ctrl-C or SIGTERM stop the body with exit code 130 and a message to continue."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("\nstopped; finished work is saved. Run the same command again to continue.", err=True)
        raise typer.Exit(130) from None


@contextmanager
def steps(title: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar, and yield a function of the numbers of finished and all steps."""
    if not on_terminal():
        yield lambda done, of: None
        return
    from rich.progress import MofNCompleteColumn

    with bar(MofNCompleteColumn()) as shown:
        task = shown.add_task(title, total=None)
        yield lambda done, of: shown.update(task, completed=done, total=of)


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[Record], None]]:
    """Show progress, and yield a function to call with each finished record."""
    done = 0
    with steps(title) as show:

        def announce(record: Record) -> None:
            nonlocal done
            done += 1
            show(done, total)
            if not on_terminal() or record.status != "finished":
                typer.echo(f"[{done}/{total}] {outcome(record)}", err=True)

        show(0, total)
        yield announce
