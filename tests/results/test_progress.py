"""A progress bar appears for long work in interactive sessions, a line per ten seconds elsewhere."""

from __future__ import annotations

import io
import re
import sys
import threading
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


def test_nothing_is_shown_if_not_asked_for_and_short_work_prints_no_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = use_terminal(monkeypatch)
    with progress("measuring", 1, shown=False):
        time.sleep(0.2)
    monkeypatch.setattr(terminal, "isatty", lambda: False)
    with progress("measuring", 1):
        time.sleep(0.2)
    notify("about 9 s", 9.0)
    notify("stopped")
    assert terminal.getvalue() == ""


def test_piped_output_gets_lines_with_step_fraction_and_time_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    monkeypatch.setattr(bars, "LINE_SECONDS", 0.2)
    monkeypatch.setattr(bars, "_log", bars._Log())
    threads = threading.active_count()
    with progress("forecasting", 4) as bar:
        bar.step("network")
        bar.advance(1)
        # the inner one is quiet, and lines appear while a step lasts
        with progress("inner", 1):
            deadline = time.monotonic() + 60
            while log.getvalue().count("\n") < 2 and time.monotonic() < deadline:
                time.sleep(0.02)
    assert threading.active_count() == threads
    lines = log.getvalue().splitlines()
    pattern = r"gapscope: forecasting: network, 25 % after (\d+) s, about (\d+) s left"
    assert len(lines) >= 2 and all(re.fullmatch(pattern, line) for line in lines)


def test_lines_of_piped_output_keep_their_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    monkeypatch.setattr(bars, "_log", bars._Log())
    for number in range(3):
        notify(f"measuring network {number}: about 60 s", 60.0)
    assert log.getvalue() == "gapscope: measuring network 0: about 60 s\n"


def test_steps_of_unknown_length_have_no_time_left() -> None:
    lines = bars._Lines("checking", 4)
    lines.advance(3)
    lines.step("GS402")
    assert "75 % after" in lines.line() and "left" in lines.line()
    lines.step("advice", is_timed=False)
    assert "%" not in lines.line() and "left" not in lines.line()
    lines.end()
