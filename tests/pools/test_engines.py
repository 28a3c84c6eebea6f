"""Local workers and cached jobs: results, errors, dead workers; every job runs once."""

from __future__ import annotations

import math
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from gapscope.base.errors import GapscopeError, InvalidInput, NotWritten, WorkerDied
from gapscope.pools import jobs
from gapscope.pools.engines import run_local
from gapscope.pools.jobs import run_cached
from pools.light_work import light_start, work


@pytest.fixture
def light_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gapscope.pools.engines._start_worker", light_start)


@pytest.mark.thorough
@pytest.mark.usefixtures("light_workers")
def test_only_the_job_that_kills_its_worker_is_lost(tmp_path: Path) -> None:
    kinds = ["a", "dies once", "b", "always dies", "fails", "c", "d"]
    jobs = [(kind, str(tmp_path)) for kind in kinds]
    outcomes = {job[0]: (result, error) for job, result, error in run_local(work, jobs, 2)}
    assert set(outcomes) == set(kinds)
    assert {kind for kind, (result, _) in outcomes.items() if result == kind} == {
        "a",
        "b",
        "c",
        "d",
        "dies once",
    }
    assert isinstance(outcomes["always dies"][1], WorkerDied)
    assert isinstance(outcomes["fails"][1], ValueError)


@pytest.mark.usefixtures("light_workers")
def test_leaving_early_ends_the_workers(tmp_path: Path) -> None:
    running = run_local(work, [(str(n), str(tmp_path)) for n in range(50)], 2)
    next(running)
    begin = time.monotonic()
    running.close()  # type: ignore[attr-defined]
    assert time.monotonic() - begin < 5
    assert len(list(tmp_path.iterdir())) < 50


@pytest.mark.usefixtures("light_workers")
def test_a_worker_killed_while_it_starts_is_replaced(tmp_path: Path) -> None:
    killed: list[object] = []

    def kill_the_first() -> None:
        while not (workers := multiprocessing.active_children()):
            time.sleep(0.01)
        workers[0].kill()
        killed.append(workers[0])

    killer = threading.Thread(target=kill_the_first)
    killer.start()
    outcomes = list(run_local(work, [("a", str(tmp_path)), ("b", str(tmp_path))], 2))
    killer.join()
    assert killed
    assert {(result, error) for _, result, error in outcomes} == {("a", None), ("b", None)}


@pytest.mark.usefixtures("light_workers")
@pytest.mark.parametrize("error", [ValueError("bad value(s) in fds_to_keep"), OSError("closed")])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_worker_that_cannot_start_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: Exception
) -> None:
    started = 0
    submit = ProcessPoolExecutor.submit

    def fail_once(self: ProcessPoolExecutor, *job: Any) -> Any:
        nonlocal started
        started += 1
        if started == number:
            raise error
        return submit(self, *job)

    monkeypatch.setattr(ProcessPoolExecutor, "submit", fail_once)
    outcomes = list(run_local(work, [("a", str(tmp_path)), ("b", str(tmp_path))], 2))
    assert {(result, failed) for _, result, failed in outcomes} == {("a", None), ("b", None)}


def test_workers_that_always_die_as_they_start_are_no_jobs_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gapscope.pools.engines.MAX_DEATHS_AT_START", 3)
    ended, killed = threading.Event(), set()

    def kill_all() -> None:
        while not ended.wait(0.005):
            for worker in multiprocessing.active_children():
                if worker.pid is not None:
                    killed.add(worker.pid)
                    worker.kill()

    killer = threading.Thread(target=kill_all)
    killer.start()
    with pytest.raises(GapscopeError, match="row were killed"):
        list(run_local(work, [("a", str(tmp_path))], 1))
    ended.set()
    killer.join()
    assert len(killed) == 3 and not list(tmp_path.iterdir())


@pytest.mark.usefixtures("light_workers")
def test_a_worker_killed_with_nothing_to_do_is_replaced(tmp_path: Path) -> None:
    running = run_local(work, [("a", str(tmp_path)), ("b", str(tmp_path))], 1)
    assert next(running)[1] == "a"
    [worker] = multiprocessing.active_children()
    worker.kill()
    time.sleep(0.5)
    assert next(running)[1] == "b"
    assert list(running) == []


def test_a_script_without_a_guard_is_an_error(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from gapscope.pools.engines import run_local\nprint(list(run_local(abs, [-1], 1)))\n"
    )
    ended = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert "Put what starts the run behind `if __name__" in ended.stderr.splitlines()[-1]


def answer(folder: str, name: str) -> dict[str, object]:
    """Mark the call, and return its process and number of threads."""
    with (Path(folder) / f"{name}.calls").open("a") as file:
        file.write("x")
    if name == "fails":
        raise ValueError("on purpose")
    return {
        "name": name,
        "threads": torch.get_num_threads(),
        "process": os.getpid(),
        "gone": math.nan,
        "pair": (1, 2),
    }


def made(folder: Path, *names: str) -> dict[str, partial[dict[str, object]]]:
    return {name: partial(answer, str(folder), name) for name in names}


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_every_job_is_computed_once(tmp_path: Path, workers: int) -> None:
    calls: list[tuple[str, int, int]] = []

    def note(*done: object) -> None:
        calls.append(done)  # type: ignore[arg-type]

    torch.set_num_threads(2)
    first = run_cached(made(tmp_path, "b", "a"), tmp_path / "cache", workers=workers, on_done=note)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    assert list(first) == ["b", "a"] and first["a"]["name"] == "a"
    assert first["a"]["threads"] == 1 and (first["a"]["process"] == os.getpid()) == (workers == 1)
    assert first["a"]["gone"] == "NaN" and first["a"]["pair"] == [1, 2]
    assert sorted(name for name, _, _ in calls) == ["a", "b"] and [done[1:] for done in calls] == [
        (1, 2),
        (2, 2),
    ]
    again = run_cached(
        made(tmp_path, "a", "b", "c"), tmp_path / "cache", workers=workers, on_done=note
    )
    assert again["a"] == first["a"] and again["b"] == first["b"] and calls[2:] == [("c", 1, 1)]
    assert {path.read_text() for path in tmp_path.glob("*.calls")} == {"x"}
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == [
        "a.json",
        "b.json",
        "c.json",
    ]


def test_a_failure_does_not_lose_the_others(tmp_path: Path) -> None:
    expected = made(tmp_path, "fails", "a", "b")
    with pytest.raises(GapscopeError, match=r"failed, first 'fails' \(ValueError") as raised:
        run_cached(expected, tmp_path / "cache", workers=1)
    assert isinstance(raised.value.__cause__, ValueError)
    assert sorted(path.stem for path in (tmp_path / "cache").iterdir()) == ["a", "b"]
    with pytest.raises(GapscopeError, match="1 of 1 failed"):
        run_cached(expected, tmp_path / "cache", workers=1)
    assert (tmp_path / "a.calls").read_text() == "x" and (
        tmp_path / "fails.calls"
    ).read_text() == "xx"


def test_an_answer_that_cannot_be_written_stops_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: str) -> None:
        raise NotWritten(f"{path} could not be written (disk full)")

    monkeypatch.setattr(jobs, "write_atomically", full)
    with pytest.raises(NotWritten, match="disk full"):
        run_cached(made(tmp_path, "a", "b"), tmp_path / "cache", workers=1)
    assert not (tmp_path / "b.calls").exists()


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "a\\b"])
def test_names_that_are_no_file_names_are_errors(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match="name of a file"):
        run_cached({name: int}, tmp_path, workers=1)
