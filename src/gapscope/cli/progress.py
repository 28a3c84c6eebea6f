"""Progress of a command: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

from gapscope.cli.output import print_lines
from gapscope.results.records import Record


def on_terminal() -> bool:
    """Return True if a bar can be shown."""
    return sys.stderr.isatty()


def outcome(record: Record) -> str:
    """Describe the end of a run in one line."""
    network = record.spec["network"]
    data = record.spec.get("data")
    run = f"{record.id}  "
    if data is None:  # trained elsewhere
        run += f"{record.spec['name']} ({network['name']})"
    else:
        run += f"{network['name']} on {data['name']}, label noise {data['label_noise']:g}"
    if record.status != "finished":
        return f"{run}: {record.status}: {record.message}"
    kind = record.gap_kind
    gap = record.gap
    if gap != gap:
        return f"{run}: no test data ({record.seconds:.1f} s)"
    train = record.scores[f"train_{kind}"]
    test = record.scores[f"test_{kind}"]
    return (
        f"{run}: train {kind} {train:.3f}, test {test:.3f}, gap {gap:.3f} ({record.seconds:.1f} s)"
    )


@contextmanager
def handle_interrupts(*, resumes: bool) -> Iterator[None]:
    """Turn Ctrl-C or SIGTERM in the body into a message and exit status 130.

    Args:
        resumes: Whether finished work is saved, so that the same command continues.

    Raises:
        Exit: The body was interrupted.
    """
    try:
        yield
    except KeyboardInterrupt:
        saved = "nothing is saved."
        if resumes:
            saved = "finished work is saved. Run the same command again to continue."
        print_lines(f"\nstopped; {saved}", err=True)
        raise typer.Exit(130) from None


@contextmanager
def steps(title: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar, and yield a function of the numbers of done and all steps."""
    if not on_terminal():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


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
                print_lines(f"[{done}/{total}] {outcome(record)}", err=True)

        show(0, total)
        yield announce
