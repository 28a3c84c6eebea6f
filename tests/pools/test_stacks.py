"""Pools whose workers train several networks in one stack: the same records, even after a kill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gapscope.base.errors import WorkerDied
from gapscope.base.specs import RunSpec
from gapscope.pools import Grid, Pool
from gapscope.pools.batches import group_specs
from gapscope.pools.readings import RunOptions
from gapscope.pools.run import run, run_specs
from gapscope.results.records import Record
from support.standins import in_this_process

GRID = Grid(
    base=RunSpec.from_dict({
        "data": {"train_size": 100, "test_size": 50},
        "training": {"epochs": 3, "momentum": 0.9, "batch_size": 20},
        "network": {"options": {"width": 8}},
    }),
    axes={"data.label_noise": [0.0, 0.4], "seed": [0, 1]},
    measures=("accuracy", "parameter_norm", "distance_from_initialization"),
)  # fmt: skip
OPTIONS = RunOptions(measures=GRID.measures)


def run_in_a_stack(folder: Path, options: RunOptions = OPTIONS) -> list[Any]:
    specs = list(GRID)
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    return run_specs(specs, [folder / "runs" / spec.id for spec in specs], options, stack="always")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    folder = tmp_path_factory.mktemp("alone")
    return [run(spec, folder / spec.id, OPTIONS) for spec in GRID]


def check_equal_but_rounding(stacked: list[Any], alone: list[Record]) -> None:
    for one, other in zip(alone, stacked, strict=True):
        content, again = vars(one), vars(other)
        assert content.keys() == again.keys()
        assert {name: content[name] for name in ("id", "spec", "status", "corruption", "stopped")} == {
            name: again[name] for name in ("id", "spec", "status", "corruption", "stopped")
        }
        assert other.scores == pytest.approx(one.scores, rel=1e-4)
        assert other.readings.values() == pytest.approx(one.readings.values(), rel=1e-4)
        for row, same in zip(one.history, other.history, strict=True):
            assert row.keys() == same.keys()
            assert same["train_loss"] == pytest.approx(row["train_loss"], rel=1e-4)


def test_records_of_a_stack_are_those_of_single_runs(tmp_path: Path, alone: list[Record]) -> None:
    check_equal_but_rounding(run_in_a_stack(tmp_path), alone)
    files = sorted(path.name for path in (tmp_path / "runs" / alone[0].id).iterdir())
    assert files == ["history.jsonl", "record.json", "weights.safetensors"]


class _Stop(BaseException):
    pass


def _stop_in_the_second_epoch(network: Any, problem: Any, row: dict[str, Any]) -> None:
    if row["epoch"] == 2 and not hasattr(_stop_in_the_second_epoch, "done"):
        _stop_in_the_second_epoch.done = True  # type: ignore[attr-defined]
        raise _Stop


def test_a_stack_that_is_killed_loses_nothing_finished(tmp_path: Path, alone: list[Record]) -> None:
    with pytest.raises(_Stop):
        run_in_a_stack(tmp_path, RunOptions(measures=GRID.measures, on_epoch=_stop_in_the_second_epoch))
    assert len(list(tmp_path.glob("runs/*/checkpoint.safetensors"))) == 4
    first = next(iter(GRID))
    run(first, tmp_path / "runs" / first.id, OPTIONS)
    before = (tmp_path / "runs" / first.id / "record.json").read_bytes()
    check_equal_but_rounding(run_in_a_stack(tmp_path), alone)
    assert (tmp_path / "runs" / first.id / "record.json").read_bytes() == before


def test_a_pool_hands_out_stacks(tmp_path: Path, alone: list[Record], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def watched(function: Any, jobs: Any, workers: int) -> Any:
        sizes.extend(len(specs) for specs, *_ in jobs)
        return in_this_process(function, jobs, workers)

    monkeypatch.setattr("gapscope.pools.engines.run_local", watched)
    seen: list[Record] = []
    records = Pool(tmp_path / "pool").run(GRID, workers=2, stack=10, on_record=seen.append)
    assert sizes == [2, 2] and len(seen) == 4
    check_equal_but_rounding(records, alone)


def test_networks_of_a_stack_that_kills_its_worker_run_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guilty, sizes = list(GRID)[1].id, []

    def deadly(function: Any, jobs: Any, workers: int) -> Any:
        for job in jobs:
            sizes.append(len(job[0]))
            if guilty in [spec.id for spec in job[0]]:
                yield job, None, WorkerDied("killed")
            else:
                yield from in_this_process(function, [job], workers)

    monkeypatch.setattr("gapscope.pools.engines.run_local", deadly)
    records = Pool(tmp_path / "pool").run(GRID, workers=1, stack=4)
    assert sizes == [4, 1, 1, 1, 1]
    assert [record.status for record in records] == ["finished", "failed", "finished", "finished"]


def test_batches_are_stackable() -> None:
    grid = Grid(base=GRID.base, axes={"network.options.width": [8, 9], "training.learning_rate": [0.1, 0.2, 0.3]})
    specs = list(grid)
    assert [len(batch) for batch in group_specs(specs, 10, 1)] == [3, 3]
    assert [len(batch) for batch in group_specs(specs, 10, 3)] == [2, 1, 2, 1]
    assert group_specs(specs, 1, 1) == [[spec] for spec in specs]
