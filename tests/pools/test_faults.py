"""Faults of the machine: corrupted files, absent data and devices, dead workers, moved folders."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gapscope.base.errors import (
    DamagedFileWarning,
    DataNotFound,
    DeviceNotFound,
    GapscopeError,
    NotWritten,
    UnreadableFile,
    WorkerDied,
)
from gapscope.base.specs import RunSpec
from gapscope.pools import Pool, open_pool
from gapscope.pools.readings import RunOptions, failure_message
from gapscope.pools.run import run
from gapscope.results.records import Record
from gapscope.training.checkpoints import load_tensors, save_tensors

BASE = {
    "data": {"train_size": 60, "test_size": 30},
    "training": {"epochs": 2},
    "network": {"options": {"width": 4}},
}
SPEC = RunSpec.from_dict(BASE)
MEASURES = ("accuracy", "parameter_count")
NO_RIGHTS = pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")


pytestmark = pytest.mark.usefixtures("without_workers")


def specs(*seeds: int) -> list[RunSpec]:
    return [SPEC.replace({"seed": seed}) for seed in seeds or (0, 1)]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template") / "pool"
    Pool(folder).run(specs(), measures=MEASURES)
    return folder


@pytest.fixture
def pool(template: Path, tmp_path: Path) -> Pool:
    shutil.copytree(template, tmp_path / "pool")
    return Pool(tmp_path / "pool")


def test_a_worker_that_dies_before_its_folder_exists_leaves_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def always_dead(function: object, jobs: Iterable[Any], workers: int) -> Iterator[Any]:
        yield from ((job, None, WorkerDied("killed")) for job in jobs)

    monkeypatch.setattr("gapscope.pools.engines.run_local", always_dead)
    records = Pool(tmp_path / "pool").run(specs())
    assert [record.status for record in records] == ["failed", "failed"]
    assert "died twice on this network alone" in records[0].message


def test_absent_data_are_no_failure_of_the_network(tmp_path: Path) -> None:
    pool, grid = Pool(tmp_path / "pool"), [SPEC, SPEC.replace({"data.name": "mnist"})]
    with pytest.raises(DataNotFound, match=r"'mnist' needs.*1 of 2 networks"):
        pool.run(grid, data_root=tmp_path, measures=())
    assert [record.id for record in pool.records()] == [SPEC.id]
    assert pool.missing(grid) == grid[1:]


def deny(*arguments: object, **options: object) -> None:
    raise PermissionError("read-only")


@pytest.mark.parametrize("device", ["cuda:7", "foo", "meta", "cpu:x", ""])
def test_an_absent_device_is_no_failure_of_the_network(tmp_path: Path, device: str) -> None:
    with pytest.raises(DeviceNotFound, match="device must be one"):
        Pool(tmp_path / "pool").run(specs(), device=device)
    assert not (tmp_path / "pool").exists()


def test_damaged_data_are_no_failure_of_the_network(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte",
                 "t10k-labels-idx1-ubyte"):  # fmt: skip
        (tmp_path / "mnist" / name).write_bytes(b"nonsense")
    with pytest.raises(UnreadableFile, match="IDX file"):
        Pool(tmp_path / "pool").run([SPEC.replace({"data.name": "mnist"})], data_root=tmp_path)
    assert Pool(tmp_path / "pool").records() == []


@pytest.mark.parametrize("rate", [1e15, 1e38])
def test_a_divergence_in_the_last_step_is_one(tmp_path: Path, rate: float) -> None:
    base = {"data.train_size": 200, "data.test_size": 100, "network.options": {"width": 16}}
    changes = {"training.epochs": 1, "training.batch_size": 200, "training.learning_rate": rate}
    (record,) = Pool(tmp_path / "pool").run([RunSpec().replace(base | changes)])
    assert (
        record.status == "diverged"
        and record.scores == {}
        and "not finite after epoch 1" in record.message
    )


def test_lack_of_memory_is_recognized() -> None:
    allocator = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to"
    for text in ("not enough memory: you tried to allocate 4 GB", allocator, "std::bad_alloc"):
        assert failure_message(RuntimeError(text)).startswith("out of memory: use a smaller batch")
    assert failure_message(RuntimeError("")) == "RuntimeError: no message"


def interrupted(folder: Path, spec: RunSpec) -> Path:
    """A run that was killed after its second epoch."""
    from gapscope.pools.from_spec import network_from_spec, prepare_data
    from gapscope.training.loop import train

    (folder / "runs" / spec.id).mkdir(parents=True)
    problem, _ = prepare_data(spec, None)

    def stop(network: object, row: dict[str, Any]) -> None:
        if row["epoch"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(network_from_spec(spec, problem), problem.train, spec.training, seed=spec.seed, test=problem.test,
              folder=folder / "runs" / spec.id, on_epoch=stop)  # fmt: skip
    return folder / "runs" / spec.id


def cut_off(run: Path) -> None:
    path = run / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def of_another_network(run: Path) -> None:
    tensors, facts = load_tensors(run / "checkpoint.safetensors")
    wider = {name: t[:1] if name.startswith("network.") else t for name, t in tensors.items()}
    save_tensors(run / "checkpoint.safetensors", wider, facts)


def history_one_short(run: Path) -> None:
    lines = (run / "history.jsonl").read_text().splitlines(keepends=True)
    (run / "history.jsonl").write_text("".join(lines[:-1]))


@pytest.mark.parametrize("damage", [cut_off, of_another_network, history_one_short])
def test_a_damaged_checkpoint_is_replaced_with_a_warning(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    spec = SPEC.replace({"training.epochs": 4})
    (expected,) = Pool(tmp_path / "expected").run([spec], measures=MEASURES)
    damage(interrupted(tmp_path / "pool", spec))
    with pytest.warns(DamagedFileWarning, match=spec.id):
        (record,) = Pool(tmp_path / "pool").run([spec], measures=MEASURES)
    assert (
        record.status == "finished"
        and record.scores == expected.scores
        and len(record.history) == 4
    )
    weights = [
        tmp_path / name / "runs" / spec.id / "weights.safetensors" for name in ("pool", "expected")
    ]
    assert weights[0].read_bytes() == weights[1].read_bytes()


RECORD_DAMAGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a list": lambda record: [],
    "unknown status": lambda record: record | {"status": "done"},
    "null scores": lambda record: record | {"scores": None},
    "odd readings": lambda record: record | {"readings": [1]},
    "a reading without value": lambda record: (
        record | {"readings": [{"measure": "a", "number": "a"}]}
    ),
    "one accuracy alone": lambda record: (
        record | {"scores": {"train_loss": 0.1, "test_loss": 0.1, "test_accuracy": 1}}
    ),
    "no status": lambda record: {k: v for k, v in record.items() if k != "status"},
    "no text": lambda record: b"\xff\xfe{",
    "empty": lambda record: b"",
    "cut off": lambda record: b"{",
    "deeply nested": lambda record: b"[" * 100_000,
    "a huge number": lambda record: b"9" * 5000,
}


@pytest.mark.parametrize("name", RECORD_DAMAGES)
def test_one_damaged_record_never_hides_the_others(pool: Pool, name: str) -> None:
    first, second = (pool.run_folder(spec.id) / "record.json" for spec in specs())
    content = first.read_bytes()
    damaged = RECORD_DAMAGES[name](json.loads(content))
    first.write_bytes(damaged if isinstance(damaged, bytes) else json.dumps(damaged).encode())
    with pytest.warns(DamagedFileWarning, match="1 of 2 records"):
        assert [record.id for record in pool.records()] == [second.parent.name]
    status = pool.status(specs())
    assert (status.finished, status.unreadable, status.total) == (1, 1, 2)
    assert [spec.id for spec in pool.missing(specs())] == [first.parent.name]
    with pytest.warns(DamagedFileWarning, match=f"{first.parent}.*retrained"):
        assert len(pool.run(specs(), measures=MEASURES)) == 2
    mended = json.loads(first.read_text())
    assert {**mended, "seconds": 0, "readings": 0} == {
        **json.loads(content),
        "seconds": 0,
        "readings": 0,
    }


def foreign_record(run: Path) -> None:
    (other,) = (path for path in run.parent.iterdir() if path != run)
    shutil.copy(other / "record.json", run)


def change_file(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        (run / name).write_bytes(change((run / name).read_bytes()))

    return damage


RUN_DAMAGES = {
    "record of another network": foreign_record,
    "weights cut off": change_file("weights.safetensors", lambda content: content[:-10]),
    "weights empty": change_file("weights.safetensors", lambda content: b""),
    "history": change_file("history.jsonl", lambda content: b"x\n" + content),
}


@pytest.mark.parametrize("name", RUN_DAMAGES)
def test_a_damaged_run_is_not_done_for_any_command_and_trained_again(pool: Pool, name: str) -> None:
    before = {record.id: record for record in pool.run(specs(), measures=[*MEASURES, "loss"])}
    run_folder = pool.run_folder(SPEC.id)
    weights = (run_folder / "weights.safetensors").read_bytes()
    RUN_DAMAGES[name](run_folder)
    for _ in range(2):  # from the files and from the index
        assert (pool.status(specs()).finished, pool.status(specs()).unreadable) == (1, 1)
        assert [spec.id for spec in pool.missing(specs())] == [SPEC.id]
        with pytest.warns(DamagedFileWarning, match=f"1 of 2 records.*{SPEC.id}"):
            assert len(pool.records()) == len(pool.to_pandas()) == 1
    with pytest.warns(DamagedFileWarning, match=f"{SPEC.id}.*retrained"):
        records = pool.run(specs(), measures=MEASURES)
    assert pool.status(specs()).finished == 2
    assert (run_folder / "weights.safetensors").read_bytes() == weights
    after = next(record for record in records if record.id == SPEC.id)
    assert after.scores == before[SPEC.id].scores
    assert len(after.history) == len(before[SPEC.id].history) == 2
    if name.startswith("weights"):  # the readings of the record are not lost
        assert "loss" in after.readings


def test_a_network_without_weights_is_trained_again_for_further_measures(pool: Pool) -> None:
    path = pool.run_folder(SPEC.id) / "weights.safetensors"
    content = path.read_bytes()
    path.unlink()
    assert pool.status(specs()).finished == 2
    assert pool.missing(specs()) == []
    record = next(r for r in pool.run(specs(), measures=["loss"]) if r.id == SPEC.id)
    assert all(name in record.readings for name in ("loss", *MEASURES))
    assert path.read_bytes() == content


def test_weights_whose_numbers_are_damaged_are_trained_again(pool: Pool) -> None:
    path = pool.run_folder(SPEC.id) / "weights.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.warns(DamagedFileWarning, match=f"{SPEC.id}.*retrained"):
        records = pool.run(specs(), measures=["loss"])
    assert all("loss" in record.readings for record in records)
    assert path.read_bytes() == content


def test_a_newer_record_is_unchanged(pool: Pool) -> None:
    path = pool.run_folder(SPEC.id) / "record.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 99}))
    assert pool.missing(specs()) == [] and pool.status(specs()).unreadable == 1
    with pytest.warns(DamagedFileWarning, match="newer gapscope"):
        assert len(pool.run(specs())) == 1
    assert json.loads(path.read_text())["schema"] == 99


def test_a_record_that_is_a_folder_or_a_broken_link_is_excluded(pool: Pool) -> None:
    first, second = (pool.run_folder(spec.id) / "record.json" for spec in specs())
    first.unlink()
    first.mkdir()
    with pytest.warns(DamagedFileWarning, match="that can be read"):
        assert len(pool.records()) == 1
    shutil.rmtree(second.parent)
    second.parent.symlink_to(pool.folder / "nowhere")
    assert pool.status(specs()).waiting == 1
    with pytest.raises(NotWritten, match="writable folder"):
        pool.run(specs(1))


def test_a_copied_run_folder_counts_once(pool: Pool) -> None:
    run_folder = pool.run_folder(SPEC.id)
    shutil.copytree(run_folder, run_folder.with_name(f"{SPEC.id} (copy)"))
    with pytest.warns(DamagedFileWarning, match="is it a copy"):
        assert len(pool.records()) == 2


@pytest.mark.parametrize("content", ["x", "[]", '{"schema": "1"}', "{}"])
def test_the_advice_about_a_damaged_marker_works(pool: Pool, content: str) -> None:
    (pool.folder / "pool.json").write_text(content)
    with pytest.raises(UnreadableFile, match="Delete it"):
        Pool(pool.folder)
    (pool.folder / "pool.json").unlink()
    assert len(open_pool(pool.folder).records()) == 2
    assert len(Pool(pool.folder).run(specs(0, 1, 2), measures=MEASURES)) == 3
    assert json.loads((pool.folder / "pool.json").read_text()) == {"schema": 1}


def test_a_run_killed_at_its_start_continues(tmp_path: Path) -> None:
    folder = tmp_path / "pool"
    folder.mkdir()
    (folder / "pool.lock").touch()
    leftover = folder / ".pool.json.0123.tmp"
    leftover.write_text("{")
    os.utime(leftover, (time.time() - 3600, time.time() - 3600))
    assert len(Pool(folder).run(specs(0), measures=())) == 1
    assert not leftover.exists()


def test_a_superseded_checkpoint_is_removed_by_the_next_run(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished, failed = (pool.run_folder(spec.id) / "checkpoint.safetensors" for spec in specs())
    for checkpoint in (finished, failed):
        checkpoint.write_bytes(b"left by a kill")
    record = failed.with_name("record.json")
    record.write_text(json.dumps(json.loads(record.read_text()) | {"status": "failed"}))
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.unlink", deny)
        assert len(pool.run(specs(), measures=MEASURES)) == 2, "a pool that may only be read"
    assert finished.exists()
    assert len(pool.run(specs(), measures=MEASURES)) == 2
    assert not finished.exists() and failed.exists(), (
        "run again, the failed one continues from its checkpoint"
    )


def test_a_run_in_a_pool_that_was_moved_makes_no_second_one(pool: Pool) -> None:
    moved = pool.folder.rename(pool.folder.with_name("moved"))
    with pytest.raises(NotWritten, match="pool been moved"):
        run(specs(7)[0], pool.run_folder(specs(7)[0].id), RunOptions())
    assert not pool.folder.exists() and len(open_pool(moved).records()) == 2


def test_a_record_that_is_written_elsewhere_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(function: object, jobs: Iterable[Any], workers: int) -> Iterator[Any]:
        for job in jobs:
            yield job, (Record(id=job[0].id, spec={}, status="finished"), []), None

    monkeypatch.setattr("gapscope.pools.engines.run_local", elsewhere)
    with pytest.raises(GapscopeError, match=r"one folder for .*or `mirror`"):
        Pool(tmp_path / "pool").run(specs())


def test_workers_receive_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[Any] = []

    def note(function: object, jobs: Iterable[Any], workers: int) -> Iterator[Any]:
        received.extend(jobs)
        return iter(())

    monkeypatch.setattr("gapscope.pools.engines.run_local", note)
    monkeypatch.chdir(tmp_path)
    Pool("pool").run(specs(0), data_root="data")
    ((_, folder, options),) = received
    assert folder == tmp_path / "pool" / "runs" / SPEC.id and options.data_root == str(
        tmp_path / "data"
    )


@pytest.mark.parametrize("name", ["pool", "pool/deeper"])
def test_a_file_in_the_way_gets_one_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / "pool").write_text("mine")
    with pytest.raises((NotWritten, UnreadableFile), match="Choose another"):
        Pool(tmp_path / name).run(specs())


@NO_RIGHTS
def test_folders_without_the_right_to_write_get_one_sentence(pool: Pool, tmp_path: Path) -> None:
    for folder in (pool.folder, pool.folder / "runs"):
        folder.chmod(0o500)
        with pytest.raises(NotWritten, match=r"Correct its permissions|can write"):
            pool.run(specs(0, 1, 2))
        folder.chmod(0o700)
    (pool.run_folder(SPEC.id) / "record.json").chmod(0)
    with pytest.warns(DamagedFileWarning, match="Correct its permissions"):
        assert len(pool.records()) == 1
    assert pool.missing(specs()) == []


def test_an_unexpected_error_is_a_failure_of_one_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gapscope.pools import run as module

    whole = module.train

    def odd(network: Any, samples: Any, settings: Any, *, seed: int, **options: Any) -> Any:
        if seed == 0:
            raise KeyError("odd")
        return whole(network, samples, settings, seed=seed, **options)

    monkeypatch.setattr(module, "train", odd)
    records = Pool(tmp_path / "pool").run(specs(), measures=())
    assert [record.status for record in records] == [
        "failed",
        "finished",
    ] and "KeyError" in records[0].message
