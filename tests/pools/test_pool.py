"""Pools and grids: only what is missing is run, failures are records, wrong keys and folders are errors."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from gapscope.base.errors import GapscopeError, InvalidInput, NotWritten, UnreadableFile
from gapscope.base.specs import RunSpec
from gapscope.pools import Grid, Pool, open_pool
from gapscope.pools.loading import measure_stored_network
from gapscope.pools.lock import lock_pool
from gapscope.pools.readings import RunOptions
from gapscope.results.records import Record
from gapscope.training.checkpoints import load_tensors, save_tensors
from support.cases import CASES
from support.standins import in_this_process

BASE = {
    "data": {"train_size": 100, "test_size": 50},
    "training": {"epochs": 3},
    "network": {"options": {"width": 8}},
}
MEASURES = ("accuracy", "parameter_count")


def some_grid(**axes: list[object]) -> Grid:
    return Grid(base=RunSpec.from_dict(BASE), axes=axes or {"seed": [0, 1]}, measures=MEASURES)


@pytest.fixture(autouse=True)
def _no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker trains the networks of `done`, which is made before; what follows needs none."""
    monkeypatch.setattr("gapscope.pools.engines.run_local", in_this_process)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Pool:
    pool = Pool(tmp_path_factory.mktemp("pool"))
    pool.run(some_grid(), workers=1)
    return pool


@pytest.mark.thorough
def test_running_again_does_only_what_is_missing(done: Pool) -> None:
    seen: list[Record] = []
    before = {path: path.stat().st_mtime_ns for path in done.folder.glob("runs/*/*")}
    begin = time.monotonic()
    records = done.run(some_grid(), on_record=seen.append)
    assert time.monotonic() - begin < 2 and seen == []
    assert [record.status for record in records] == ["finished", "finished"]
    assert {path: path.stat().st_mtime_ns for path in done.folder.glob("runs/*/*")} == before
    assert done.status(some_grid(seed=[0, 1, 2])).waiting == 1


@pytest.mark.thorough
def test_a_record_holds_everything(done: Pool) -> None:
    record = done.records()[0]
    assert record.scores.keys() == {"train_loss", "train_accuracy", "test_loss", "test_accuracy"}
    assert [reading.name for reading in record.readings] == list(MEASURES)
    assert record.readings["accuracy"].value == record.scores["train_accuracy"]
    assert [row["epoch"] for row in record.history] == [1, 2, 3] and record.epochs_trained == 3
    assert record.history[-1]["test_accuracy"] == record.scores["test_accuracy"]
    assert RunSpec.from_dict(record.spec).id == record.id and record.environment["threads"] == 1
    assert record.corruption["train"]["used"] == 100


def test_a_missing_measure_is_added_without_training_again(done: Pool) -> None:
    grid = Grid(
        base=some_grid().base,
        axes={"seed": [0, 1]},
        measures=(*MEASURES, "distance_from_initialization"),
    )
    weights = {path: path.read_bytes() for path in done.folder.glob("runs/*/weights.safetensors")}
    histories = {path: path.stat().st_mtime_ns for path in done.folder.glob("runs/*/history.jsonl")}
    assert len(done.missing(grid, measures=grid.measures)) == 2
    for record in done.run(grid):
        assert record.readings["distance_from_initialization"].value > 0
    assert {path: path.read_bytes() for path in weights} == weights
    assert {path: path.stat().st_mtime_ns for path in histories} == histories


def test_networks_that_fail_are_records(tmp_path: Path) -> None:
    cases = (
        {"training.learning_rate": 1e30},
        {"data.train_size": 10**6},
        {"network.name": "lenet5", "network.options": {}},
        {"data.target_noise": 1.0},
        {},
    )
    pool = Pool(tmp_path / "pool")
    records = pool.run(Grid(base=RunSpec.from_dict(BASE), cases=cases, measures=MEASURES))
    assert [record.status for record in records] == [
        "diverged",
        "failed",
        "failed",
        "failed",
        "finished",
    ]
    assert "loss not finite in epoch" in records[0].message
    assert "train_size must be at most 1,297" in records[1].message
    assert "pixels" in records[2].message
    assert "target_noise needs a regression problem" in records[3].message
    table = pool.to_pandas()
    assert [value == value for value in table["gap"].tolist()].count(True) == 1 and len(table) == 5
    # not tried again
    assert pool.run(Grid(base=RunSpec.from_dict(BASE), cases=cases[:2]))[1].seconds == 0


def test_wrong_settings_stop_before_anything_is_trained(tmp_path: Path) -> None:
    pool = Pool(tmp_path / "pool")
    for axes, message in (
        ({"network.name": ["lenet"]}, "Did you mean 'lenet5'"),
        ({"network.options.widht": [3]}, "Did you mean 'width'"),
        ({"data.name": ["mnst"]}, "Did you mean 'mnist'"),
        ({"training.penalties": [[{"name": "wieght"}]]}, "Did you mean 'weight'"),
    ):
        with pytest.raises(InvalidInput, match=message):
            pool.run(some_grid(**axes))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="Did you mean 'accuracy'"):
        pool.run(some_grid(), measures=["acuracy"])
    with pytest.raises(InvalidInput, match="'local', 'ray'"):
        pool.run(some_grid(), engine="dask")
    assert not pool.folder.exists()


def test_one_process_at_a_time(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    with lock_pool(pool.folder), pytest.raises(GapscopeError, match="process at a time"):
        pool.run(some_grid())


def test_foreign_and_newer_folders_are_errors(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UnreadableFile, match="pool, a new folder"):
        Pool(tmp_path)
    with pytest.raises(InvalidInput, match="holds no pool"):
        open_pool(tmp_path)
    (tmp_path / "pool.json").write_text(json.dumps({"schema": 99}))
    with pytest.raises(UnreadableFile, match="newer gapscope"):
        Pool(tmp_path)


def test_a_full_disk_is_no_failure_of_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise NotWritten("could not be written (disk full)")

    pool, spec = Pool(tmp_path / "full"), RunSpec.from_dict(BASE)
    (record,) = Pool(tmp_path / "fresh").run([spec], measures=())
    with monkeypatch.context() as patch:
        patch.setattr("gapscope.results.records.write_atomically", full)
        with pytest.raises(NotWritten, match="disk full"):
            pool.run([spec], measures=())
    assert pool.get_record(spec.id) is None
    (again,) = pool.run([spec], measures=())
    assert again.status == "finished" and again.scores == record.scores


def test_finished_work_survives_a_failing_measure(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    (record,) = pool.run(some_grid(seed=[0]))
    weights = pool.run_folder(record.id) / "weights.safetensors"
    save_tensors(weights, load_tensors(weights)[0])
    (after,) = pool.run(some_grid(seed=[0]), measures=[*MEASURES, "parameter_norm"])
    assert (
        after.status == "finished"
        and after.readings == record.readings
        and after.scores == record.scores
    )
    assert "the spec of its network" in after.unmeasured["parameter_norm"]


def test_weights_are_measured_only_on_the_data_they_were_trained_on(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    (record,) = pool.run(some_grid(seed=[0]))
    weights = pool.run_folder(record.id) / "weights.safetensors"
    again = measure_stored_network(weights, RunOptions(measures=MEASURES))
    assert again.readings.values() == record.readings.values() and again.measured_samples == 100
    tensors, facts = load_tensors(weights)
    facts["corruption"]["train"]["used"] = 99
    save_tensors(weights, tensors, facts)
    with pytest.raises(UnreadableFile, match="data must be those"):
        measure_stored_network(weights, RunOptions(measures=MEASURES))
    save_tensors(weights, tensors)
    with pytest.raises(UnreadableFile, match="spec of its network"):
        measure_stored_network(weights, RunOptions(measures=MEASURES))


def test_networks_of_every_kind_are_put_into_one_pool(tmp_path: Path) -> None:
    pool, right = Pool(tmp_path), {}
    for name, case in CASES.items():
        network, samples = case.make(9)
        pool.add(
            network, (samples.inputs, samples.y), name=name, measures=["accuracy", "parameter_norm"]
        )
        right[name] = float((network(samples.inputs).argmax(1) == samples.y).float().mean())
    table = pool.to_pandas()
    assert len(table) == len(CASES) and (table["parameter_norm"] > 0).all()
    assert sorted(table["accuracy"].tolist()) == pytest.approx(sorted(right.values()))


TOML = """
measures = ["accuracy"]

[base.data]
name = "mnist"
train_size = 3000

[base.training]
penalties = [{ name = "weight", options = { strength = 0.001 } }]

[[cases]]
"network.name" = "lenet5"

[[cases]]
"network.name" = "fully_connected"
"network.options.width" = 32

[axes]
"data.label_noise" = [0.0, 0.3]
"seed" = [0, 1]
"""


def test_a_grid_is_cases_times_axes(tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(TOML, encoding="utf-8-sig")  # with a byte order mark, as some editors write it
    grid = Grid.from_toml(path)
    specs = list(grid)
    assert len(grid) == len(specs) == len({spec.id for spec in specs}) == 8
    assert {(s.network.name, s.data.label_noise, s.seed) for s in specs} == {
        (name, noise, seed)
        for name in ("lenet5", "fully_connected")
        for noise in (0.0, 0.3)
        for seed in (0, 1)
    }
    assert (
        specs[4].network.options == {"width": 32}
        and specs[0].training.penalties[0].name == "weight"
    )
    assert grid.measures == ("accuracy",) and all(spec.data.train_size == 3000 for spec in specs)


def test_equal_specs_come_once() -> None:
    assert len(Grid(cases=[{"seed": 1}, {"seed": 1}, {}])) == 2
    assert list(Grid()) == [RunSpec()]
    assert len(Grid(axes={"seed": range(3)})) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"axis": {}}, "has no table 'axis'.*Did you mean 'axes'"),
        (
            {"axes": {"data.lable_noise": [0]}},
            "axes must name settings.*Did you mean 'data.label_noise'",
        ),
        ({"axes": {"seed": []}}, "at least one value"),
        ({"cases": [{"sed": 1}]}, r"cases\[0\] must name settings.*Did you mean 'seed'"),
        ({"base": {"data": {"nam": "mnist"}}}, "no setting 'nam'.*Did you mean 'name'"),
        ({"cases": [1]}, r"cases must be tables of settings; got \[1\]"),
        ({"axes": [1]}, r"axes must be a table of lists; got \[1\]"),
        ({"measures": 5}, "measures must be a list of names; got 5"),
    ],
)
def test_wrong_keys_suggest_the_nearest(content: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Grid.from_dict(content)


def test_wrong_files_get_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match="no such file"):
        Grid.from_toml(tmp_path / "absent.toml")
    (tmp_path / "bad.toml").write_text("a = [1")
    with pytest.raises(UnreadableFile, match="grid; reading"):
        Grid.from_toml(tmp_path / "bad.toml")


def test_a_grid_is_counted_before_it_is_built() -> None:
    axes = {name: range(1000) for name in ("seed", "data.seed", "training.epochs")}
    with pytest.raises(InvalidInput, match=r"has 1,000,000,000.*max_networks"):
        Grid(axes=axes)
    assert Grid(axes=axes, max_networks=10**9).axes == axes
    assert len(Grid.from_dict({"axes": {"seed": [1, 2]}, "max_networks": 2})) == 2


@pytest.mark.parametrize("specs", [5, None, "digits", [5], {"a": 1}, RunSpec()])
def test_what_is_no_grid_is_refused_with_what_is_needed(tmp_path: Path, specs: Any) -> None:
    pool = Pool(tmp_path / "pool")
    for function in (pool.run, pool.status, pool.missing):
        with pytest.raises(InvalidInput, match="Grid or a list"):
            function(specs)
