"""Remembered answers: computed once, in processes or not, and kept whatever fails beside them."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from engines import in_this_process
from gapscope.base.errors import GapscopeError, InvalidInput, NotWritten, WorkerDied
from gapscope.pools import jobs
from gapscope.pools.jobs import run_cached


def answer(folder: str, name: str) -> dict[str, object]:
    """Leaves a mark for each call, and says in how many threads of which process it ran."""
    with (Path(folder) / f"{name}.calls").open("a") as file:
        file.write("x")
    if name == "fails":
        raise ValueError("as told")
    if name == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    return {"name": name, "threads": torch.get_num_threads(), "process": os.getpid(), "gone": math.nan, "pair": (1, 2)}


def made(folder: Path, *names: str) -> dict[str, partial[dict[str, object]]]:
    return {name: partial(answer, str(folder), name) for name in names}


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_every_job_is_computed_once_and_kept(tmp_path: Path, workers: int) -> None:
    said: list[tuple[str, int, int]] = []

    def tell(*done: object) -> None:
        said.append(done)  # type: ignore[arg-type]

    first = run_cached(made(tmp_path, "b", "a"), tmp_path / "kept", workers=workers, on_done=tell)
    assert list(first) == ["b", "a"] and first["a"]["name"] == "a"
    assert first["a"]["threads"] == 1 and (first["a"]["process"] == os.getpid()) == (workers == 1)
    assert first["a"]["gone"] == "NaN" and first["a"]["pair"] == [1, 2]
    assert sorted(name for name, _, _ in said) == ["a", "b"] and [done[1:] for done in said] == [(1, 2), (2, 2)]
    again = run_cached(made(tmp_path, "a", "b", "c"), tmp_path / "kept", workers=workers, on_done=tell)
    assert again["a"] == first["a"] and again["b"] == first["b"] and said[2:] == [("c", 1, 1)]
    assert {path.read_text() for path in tmp_path.glob("*.calls")} == {"x"}
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["a.json", "b.json", "c.json"]


def test_a_failure_does_not_lose_the_others(tmp_path: Path) -> None:
    wanted = made(tmp_path, "fails", "a", "b")
    with pytest.raises(GapscopeError, match=r"1 of 3 failed, first 'fails' \(ValueError: as told\)") as raised:
        run_cached(wanted, tmp_path / "kept", workers=1)
    assert isinstance(raised.value.__cause__, ValueError)
    assert sorted(path.stem for path in (tmp_path / "kept").iterdir()) == ["a", "b"]
    with pytest.raises(GapscopeError, match="1 of 1 failed"):
        run_cached(wanted, tmp_path / "kept", workers=1)
    assert (tmp_path / "a.calls").read_text() == "x" and (tmp_path / "fails.calls").read_text() == "xx"


def test_a_job_that_killed_its_worker_does_not_lose_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def engine(function: Any, todo: Any, workers: int) -> Iterator[Any]:
        yield from in_this_process(function, todo[1:], workers)
        yield todo[0], None, WorkerDied("killed")

    monkeypatch.setattr(jobs, "run_local", engine)
    with pytest.raises(GapscopeError, match=r"1 of 3 failed, first 'dies' \(WorkerDied: killed\)") as raised:
        run_cached(made(tmp_path, "dies", "a", "b"), tmp_path / "kept", workers=2)
    assert isinstance(raised.value.__cause__, WorkerDied)
    assert sorted(path.stem for path in (tmp_path / "kept").iterdir()) == ["a", "b"]


def test_an_answer_that_cannot_be_written_stops_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: str) -> None:
        raise NotWritten(f"{path} could not be written (disk full)")

    monkeypatch.setattr(jobs, "write_atomically", full)
    with pytest.raises(NotWritten, match="disk full"):
        run_cached(made(tmp_path, "a", "b"), tmp_path / "kept", workers=1)
    assert not (tmp_path / "b.calls").exists()


def test_the_threads_of_this_process_are_left_alone(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert run_cached(made(tmp_path, "a"), tmp_path / "kept", workers=1)["a"]["threads"] == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "a\\b"])
def test_names_that_are_no_file_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match="usable as the name of a file"):
        run_cached({name: int}, tmp_path, workers=1)
