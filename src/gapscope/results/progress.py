"""Progress of long work: a bar in terminals and notebooks, a line per ten seconds elsewhere (logs, pipes)."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

# shorter waits need no bar
SHOW_AFTER_SECONDS = 2.0
# Shortest time between lines outside terminals and notebooks: a log of an hour has at most 360.
LINE_SECONDS = 10.0
_showing = threading.Lock()


def is_interactive() -> bool:
    """Return True if standard error is a terminal, or in a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


class _Log:
    """Lines on standard error, at most one per `LINE_SECONDS`."""

    def __init__(self) -> None:
        self.last = -float("inf")

    def write(self, sentence: str) -> None:
        """Print a line, unless another was printed shortly before."""
        now = time.monotonic()
        if now - self.last >= LINE_SECONDS:
            self.last = now
            print(f"gapscope: {sentence}", file=sys.stderr, flush=True)


_log = _Log()


def notify(sentence: str, seconds: float = 0.0) -> None:
    """Print a message if the session is interactive, or if it announces work that takes ten seconds or more.

    Args:
        sentence: The message.
        seconds: Estimated duration of the work that it announces; 0 for other messages.
    """
    if is_interactive():
        from rich.console import Console

        Console(stderr=True).print(sentence, style="dim", markup=False, highlight=False)
    elif seconds >= LINE_SECONDS:
        _log.write(sentence)


class NullProgress:
    """Progress without a bar."""

    def step(self, what: str, *, is_timed: bool = True) -> None:
        """Show the next step.

        Args:
            what: Its name.
            is_timed: Whether the time left is estimated: steps take about the same time.
        """

    def advance(self, amount: float = 1.0) -> None:
        """Advance the bar."""


class _Bar(NullProgress):
    """Bar that appears after two seconds, and vanishes at the end."""

    def __init__(self, title: str, total: float) -> None:
        from rich.console import Console
        from rich.progress import Progress, TimeElapsedColumn

        # the default columns, with the time spent in place of the time left
        columns = (*Progress.get_default_columns()[:3], TimeElapsedColumn())
        self.bar: Any = Progress(*columns, console=Console(stderr=True), transient=True)
        self.title = title
        self.task = self.bar.add_task(title, total=total)
        self.lock = threading.Lock()
        self.is_over = False
        self.timer = threading.Timer(SHOW_AFTER_SECONDS, self._start)
        self.timer.daemon = True
        self.timer.start()

    def _start(self) -> None:
        with self.lock:
            if not self.is_over:
                self.bar.start()

    def step(self, what: str, *, is_timed: bool = True) -> None:
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


class _Lines(NullProgress):
    """A line per ten seconds with the step, the fraction done and the estimated time left."""

    def __init__(self, title: str, total: float) -> None:
        self.title = title
        self.total = total
        self.what = ""
        self.is_timed = True
        self.done = 0.0
        self.start = time.monotonic()
        self.is_over = threading.Event()
        # a step may take minutes, so that lines do not wait for the next one
        self.thread = threading.Thread(target=self._print, daemon=True)
        self.thread.start()

    def _print(self) -> None:
        while not self.is_over.wait(LINE_SECONDS):
            _log.write(self.line())

    def line(self) -> str:
        """Return the step, the fraction done, and the time spent and left."""
        spent = time.monotonic() - self.start
        text = self.title
        if self.what:
            text += f": {self.what}"
        if not self.is_timed:
            return f"{text}, {spent:.0f} s"
        fraction = 0.0
        if self.total > 0:
            fraction = min(1.0, self.done / self.total)
        text += f", {100 * fraction:.0f} % after {spent:.0f} s"
        if fraction > 0:
            text += f", about {spent * (1 - fraction) / fraction:.0f} s left"
        return text

    def step(self, what: str, *, is_timed: bool = True) -> None:
        """Name the next step."""
        self.what = what
        self.is_timed = is_timed

    def advance(self, amount: float = 1.0) -> None:
        """Count finished work."""
        self.done += amount

    def end(self) -> None:
        """End the lines."""
        self.is_over.set()
        self.thread.join()


@contextmanager
def progress(title: str, total: float, *, shown: bool = True) -> Generator[NullProgress]:
    """Show the progress of the body: a bar after two seconds, or a line per ten seconds if output is piped.

    Yields:
        Progress to update; it does nothing if none is shown.
    """
    if not shown or not _showing.acquire(blocking=False):
        yield NullProgress()
        return
    try:
        bar = _Bar(title, total) if is_interactive() else _Lines(title, total)
        try:
            yield bar
        finally:
            bar.end()
    finally:
        _showing.release()
