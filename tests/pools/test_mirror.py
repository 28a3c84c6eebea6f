"""Mirrors of finished runs: machines without a shared folder, an S3 server, partial mirror."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gapscope.base.errors import InvalidInput, NotWritten
from gapscope.base.specs import RunSpec
from gapscope.pools import Pool
from gapscope.pools.mirror import Mirror

SPEC = RunSpec.from_dict(
    {
        "data": {"train_size": 60, "test_size": 30},
        "training": {"epochs": 2},
        "network": {"options": {"width": 4}},
    }
)
SPECS = [SPEC, SPEC.replace({"seed": 1})]
FILES = {"history.jsonl", "record.json", "weights.safetensors"}


pytestmark = pytest.mark.usefixtures("without_workers")


def nothing_may_run(function: Any, jobs: Any, workers: int) -> Iterator[Any]:
    raise AssertionError("a finished network was run again")
    yield


def check_copied(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a pool with a mirror, and fetch all runs into another pool."""
    done = Pool(tmp_path / "first").run(SPECS, measures=(), mirror=address)
    assert Mirror(address).list_ids() == {spec.id for spec in SPECS}
    monkeypatch.setattr("gapscope.pools.engines.run_local", nothing_may_run)
    again = Pool(tmp_path / "second").run(SPECS, measures=(), mirror=address)
    assert again == done
    for spec in SPECS:
        here, there = (tmp_path / pool / "runs" / spec.id for pool in ("first", "second"))
        assert {path.name for path in there.iterdir()} == FILES
        assert all((here / name).read_bytes() == (there / name).read_bytes() for name in FILES)


def test_finished_runs_are_fetched_from_the_mirror(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_copied(str(tmp_path / "there"), tmp_path, monkeypatch)


@pytest.mark.thorough
def test_an_s3_server_is_a_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    for name, value in (("ACCESS_KEY_ID", "a"), ("SECRET_ACCESS_KEY", "b"), ("DEFAULT_REGION", "us-east-1"),
                        ("ENDPOINT_URL", f"http://{host}:{port}")):  # fmt: skip
        monkeypatch.setenv(f"AWS_{name}", value)
    try:
        Mirror("s3://bucket/pool")._files.mkdir("bucket")
        check_copied("s3://bucket/pool", tmp_path, monkeypatch)
    finally:
        running.stop()


def test_machines_need_not_share_the_folder_of_the_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_another_machine(function: Any, jobs: Any, workers: int) -> Iterator[Any]:
        for job in jobs:
            spec, folder, options = job
            elsewhere = tmp_path / "other machine" / folder.relative_to(tmp_path)
            yield job, function((spec, elsewhere, options)), None

    monkeypatch.setattr("gapscope.pools.engines.run_local", on_another_machine)
    records = Pool(tmp_path / "pool").run(SPECS, measures=(), mirror=str(tmp_path / "there"))
    assert [record.status for record in records] == ["finished", "finished"]
    assert {path.name for path in (tmp_path / "pool" / "runs" / SPEC.id).iterdir()} == FILES


def test_a_run_that_lacks_a_measure_is_fetched_and_not_trained_again(tmp_path: Path) -> None:
    address = str(tmp_path / "there")
    (first,) = Pool(tmp_path / "first").run([SPEC], measures=(), mirror=address)
    shutil.rmtree(tmp_path / "first")
    (second,) = Pool(tmp_path / "second").run([SPEC], measures=("parameter_norm",), mirror=address)
    assert not second.missing_measures(("parameter_norm",)) and first.missing_measures(
        ("parameter_norm",)
    )
    assert second.scores == first.scores and second.seconds >= first.seconds
    assert Mirror(address).get(SPEC.id, tmp_path / "third")
    assert "parameter_norm" in (tmp_path / "third" / "record.json").read_text()


def test_a_partial_copy_counts_as_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Pool(tmp_path / "pool").run([SPEC], measures=())
    folder, mirror = tmp_path / "pool" / "runs" / SPEC.id, Mirror(str(tmp_path / "there"))
    files = mirror._files
    put = files.put_file

    def full(path: str, target: str) -> None:
        if Path(path).name == "record.json":
            raise OSError("no space")
        put(path, target)

    monkeypatch.setattr(files, "put_file", full)
    with pytest.raises(NotWritten, match=r"copying \w+ failed \(OSError"):
        mirror.put(folder)
    assert mirror.list_ids() == {SPEC.id} and not mirror.get(SPEC.id, tmp_path / "fetched")
    assert not (tmp_path / "fetched").exists()
    monkeypatch.setattr(files, "put_file", put)
    mirror.put(folder)
    assert mirror.get(SPEC.id, tmp_path / "fetched")


def test_an_unsupported_address_is_an_error() -> None:
    with pytest.raises(InvalidInput, match=r"mirror must .*nonsense://x"):
        Pool("unused").run([SPEC], mirror="nonsense://x")
    assert not Path("unused").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine": "local", "address": "127.0.0.1:1"}, "address and gpus need a Ray cluster"),
        ({"engine": "local", "gpus": 0.5}, "address and gpus need a Ray cluster"),
        (
            {"engine": "ray", "gpus": 1.5},
            "gpus must be at most 1, or an integer; got 1.5. Use 1 or 2",
        ),
        ({"engine": "ray", "gpus": -1.0}, "gpus must be"),
    ],
)
def test_settings_of_a_cluster_are_checked_first(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Pool("unused").run([SPEC], **settings)
