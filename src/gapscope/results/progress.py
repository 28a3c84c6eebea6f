"""Progress bar for work longer than two seconds, in terminals and notebooks."""

from __future__ import annotations

import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

SHOW_AFTER_SECONDS = 2.0
_showing = threading.Lock()


def is_interactive() -> bool:
    """Return True if standard error is a terminal, or in a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def notify(sentence: str) -> None:
    """Print a message if the session is interactive."""
    if is_interactive():
        from rich.console import Console

        Console(stderr=True).print(sentence, style="dim", markup=False, highlight=False)


class NullProgress:
    """Progress without a bar."""

    def step(self, what: str) -> None:
        """Show the next step."""

    def advance(self, amount: float = 1.0) -> None:
        """Advance the bar."""


class _Bar(NullProgress):
    """Bar that appears after two seconds, and vanishes at the end."""

    def __init__(self, title: str, total: float) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        self.bar: Any = Progress(*columns, console=Console(stderr=True), transient=True)
        self.title = title
        self.task = self.bar.add_task(title, total=total)
        self.lock, self.is_over = threading.Lock(), False
        self.timer = threading.Timer(SHOW_AFTER_SECONDS, self._start)
        self.timer.daemon = True
        self.timer.start()

    def _start(self) -> None:
        with self.lock:
            if not self.is_over:
                self.bar.start()

    def step(self, what: str) -> None:
        """Show the next step."""
        self.bar.update(self.task, description=f"{self.title}: {what}")

    def advance(self, amount: float = 1.0) -> None:
        """Advance the bar."""
        self.bar.advance(self.task, amount)

    def end(self) -> None:
        """Remove the bar."""
        self.timer.cancel()
        with self.lock:
            self.is_over = True
            self.bar.stop()


@contextmanager
def progress(title: str, total: float, *, shown: bool = True) -> Generator[NullProgress]:
    """Show a progress bar in interactive sessions if the body takes over two seconds.

    Yields:
        Progress to update; it does nothing if no bar is shown.
    """
    if not shown or not is_interactive() or not _showing.acquire(blocking=False):
        yield NullProgress()
        return
    bar = _Bar(title, total)
    try:
        yield bar
    finally:
        bar.end()
        _showing.release()
