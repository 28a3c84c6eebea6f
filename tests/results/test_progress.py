"""A progress bar appears only for long work in interactive sessions."""

from __future__ import annotations

import io
import sys
import time

import pytest

from gapscope.results import progress as bars
from gapscope.results.progress import notify, progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def use_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make standard error a terminal; call it in a test, as pytest replaces standard error before."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(bars, "SHOW_AFTER_SECONDS", 0.05)
    monkeypatch.setenv("TERM", "xterm")
    return terminal


def test_short_work_shows_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    monkeypatch.setattr(bars, "SHOW_AFTER_SECONDS", 60.0)
    with progress("measuring", 2) as bar:
        bar.step("loss")
        bar.advance()
    assert "loss" not in terminal.getvalue()


def test_long_work_shows_the_outermost_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    with progress("measuring", 2) as bar:
        bar.step("loss")
        with progress("inner", 1) as inner:
            inner.step("hidden")
            deadline = time.monotonic() + 60
            while "measuring" not in terminal.getvalue() and time.monotonic() < deadline:
                time.sleep(0.02)
    assert "measuring: loss" in terminal.getvalue() and "inner" not in terminal.getvalue()


def test_no_bar_outside_a_terminal_or_if_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    with progress("measuring", 1, shown=False):
        time.sleep(0.2)
    monkeypatch.setattr(terminal, "isatty", lambda: False)
    with progress("measuring", 1):
        time.sleep(0.2)
    notify("about 9 s")
    assert terminal.getvalue() == ""
