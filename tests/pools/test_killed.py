"""SIGKILL at random moments, of one worker or of everything: nothing finished is lost, the end is the same."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gapscope.pools import Grid, Pool

GRID = """
measures = ["accuracy", "parameter_norm", "distance_from_initialization"]

[base.data]
name = "digits"
train_size = 1000

[base.training]
epochs = 40
momentum = 0.9

[base.network]
options = { dropout = 0.2, n_hidden = 2 }

[axes]
"data.label_noise" = [0.0, 0.5]
"seed" = [0, 1, 2, 3]
"""


def start(grid: Path, folder: Path, *options: str) -> subprocess.Popen[bytes]:
    """The command as a user starts it, in a process group of its own."""
    code = "import sys; from gapscope.cli import main; sys.argv[0] = 'gapscope'; main()"
    command = [sys.executable, "-c", code, "pool", "run", str(grid), str(folder), *options]
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


def workers_of(process: subprocess.Popen[bytes]) -> list[int]:
    """Process ids of the children that run networks."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [
        pid
        for pid in map(int, children)
        if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


def finished(folder: Path) -> dict[str, bytes]:
    """Content of every record; each must be whole."""
    records = {path.parent.name: path.read_bytes() for path in folder.glob("runs/*/record.json")}
    assert all(json.loads(content)["status"] == "finished" for content in records.values())
    return records


def kill(process: subprocess.Popen[bytes], *, one_worker: bool, moments: random.Random) -> None:
    """Kill one worker, after which the command must end well by itself, or the whole group."""
    victims = workers_of(process) if one_worker else []
    if victims:
        os.kill(moments.choice(victims), signal.SIGKILL)
        assert process.wait() == 0
    else:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def take_half_away(folder: Path) -> None:
    """Remove every second record, so that there is something to do again."""
    for path in sorted(folder.glob("runs/*/record.json"))[::2]:
        path.unlink()


def same_networks(tmp_path: Path, n: int) -> None:
    """The broken pool and the unbroken one hold the same records and the same weights, and nothing half written."""
    broken, unbroken = (Pool(tmp_path / name) for name in ("broken", "unbroken"))
    expected = unbroken.to_pandas().drop(columns="seconds")
    assert len(expected) == n
    assert broken.to_pandas().drop(columns="seconds").equals(expected)
    for spec_id in expected.index:
        first, second = (
            pool.run_folder(spec_id) / "weights.safetensors" for pool in (broken, unbroken)
        )
        assert first.read_bytes() == second.read_bytes()
    assert not [
        path
        for name in (".*.tmp", "checkpoint.safetensors")
        for path in broken.folder.glob(f"runs/*/{name}")
    ]


def lose_nothing(tmp_path: Path, content: str, kills_wanted: int, seed: int, *options: str) -> int:
    """Kill runs of a grid so often, at random moments, and compare with an unbroken run; return the kills."""
    grid, folder = tmp_path / "grid.toml", tmp_path / "broken"
    grid.write_text(content)
    n = len(Grid.from_toml(grid))
    begin = time.monotonic()
    assert start(grid, tmp_path / "unbroken", *options).wait() == 0
    longest = time.monotonic() - begin

    moments, kills, before = random.Random(seed), 0, {}
    while kills < kills_wanted:
        process = start(grid, folder, *options)
        try:
            process.wait(timeout=moments.uniform(0.3, 1.0) * longest)
        except subprocess.TimeoutExpired:
            kill(process, one_worker=kills % 3 == 2 and not options, moments=moments)
            kills += 1
        else:
            assert process.returncode == 0
            longest *= 0.8  # it ended before it was killed: kill earlier
        now = finished(folder)
        assert before.items() <= now.items(), "a finished record was lost or rewritten"
        if len(now) == n:
            take_half_away(folder)
        before = finished(folder)

    assert start(grid, folder, *options).wait() == 0
    same_networks(tmp_path, n)
    return kills


@pytest.mark.timeout(3600)
@pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="reads the children of a process from /proc"
)
@pytest.mark.parametrize(
    ("seeds", "kills"),
    [
        pytest.param("[0]", 2, marks=pytest.mark.thorough),
        pytest.param("[0, 1, 2, 3]", 10, marks=pytest.mark.slow),
    ],
)
def test_kills_lose_nothing(tmp_path: Path, seeds: str, kills: int) -> None:
    assert lose_nothing(tmp_path, GRID.replace("[0, 1, 2, 3]", seeds), kills, seed=1) == kills


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_five_kills_of_a_ray_driver_lose_nothing(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    assert lose_nothing(tmp_path, GRID, 5, 0, "--engine", "ray") == 5
