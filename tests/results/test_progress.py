"""A bar appears only where it lasts and somebody looks."""

from __future__ import annotations

import sys
import time

import pytest

from gapscope.results import progress as bars
from gapscope.results.progress import notify, progress


class Terminal:
    def __init__(self) -> None:
        self.written = ""

    def write(self, text: str) -> int:
        self.written += text
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return True


def look(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Somebody looks; asked in the body of a test, since pytest puts its own standard error in place before that."""
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(bars, "SHOW_AFTER_SECONDS", 0.05)
    monkeypatch.setenv("TERM", "xterm")
    return shown


def test_nothing_is_shown_for_what_is_over_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = look(monkeypatch)
    monkeypatch.setattr(bars, "SHOW_AFTER_SECONDS", 60.0)
    with progress("measuring", 2) as bar:
        bar.step("loss")
        bar.advance()
    assert "loss" not in terminal.written


def test_what_lasts_shows_what_is_done_and_only_the_outermost_one(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = look(monkeypatch)
    with progress("measuring", 2) as bar:
        bar.step("loss")
        with progress("inner", 1) as inner:
            inner.step("hidden")
            deadline = time.monotonic() + 60
            while "measuring" not in terminal.written and time.monotonic() < deadline:
                time.sleep(0.02)
    assert "measuring: loss" in terminal.written and "inner" not in terminal.written


def test_nothing_is_shown_where_nobody_looks_or_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = look(monkeypatch)
    with progress("measuring", 1, shown=False):
        time.sleep(0.2)
    monkeypatch.setattr(terminal, "isatty", lambda: False)
    with progress("measuring", 1):
        time.sleep(0.2)
    notify("about 9 s")
    assert terminal.written == ""
