"""The Ray engine: running, absent and lost clusters, dying workers, relative folders."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gapscope.base.errors import GapscopeError, WorkerDied
from gapscope.base.specs import RunSpec
from gapscope.pools import Pool
from gapscope.pools.ray_engine import run_ray, running_cluster

ray = pytest.importorskip("ray")
SPEC = RunSpec.from_dict(
    {
        "data": {"train_size": 60, "test_size": 30},
        "training": {"epochs": 2},
        "network": {"options": {"width": 4}},
    }
)


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


def test_a_stale_address_file_is_ignored_in_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert running_cluster() is None
    (tmp_path / "ray").mkdir()
    message = tmp_path / "ray" / "ray_current_cluster"
    message.write_text(f"127.0.0.1:{free_port()}")
    assert running_cluster() is None
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        message.write_text(address)
        assert running_cluster() == address
        monkeypatch.setenv("RAY_ADDRESS", "local")
        assert running_cluster() is None
        for named in (address, f"ray://{address}"):
            monkeypatch.setenv("RAY_ADDRESS", named)
            assert running_cluster() == named


@pytest.mark.parametrize("named", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "nonsense"])
def test_an_absent_cluster_in_ray_address_is_an_error(
    named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", named.format(free_port()))
    with pytest.raises(GapscopeError, match="running Ray cluster"):
        running_cluster()


def work(job: tuple[str, str]) -> str:
    """Return in a worker, or die the first time or always."""
    kind, folder = job
    marker = Path(folder) / f"seen-{kind}"
    first = not marker.exists()
    with marker.open("a") as file:
        file.write("x")
    if kind == "always dies" or (kind == "dies once" and first):
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{kind} in {Path.cwd()}"


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A cluster of two processors that this process is not connected to, as `ray start --head` leaves one."""
    settings = {"num_cpus": 2, "include_dashboard": False}
    held = pytest.importorskip("ray.cluster_utils").Cluster(
        initialize_head=True, head_node_args=settings
    )
    yield str(held.address)
    held.shutdown()


@pytest.mark.slow
def test_a_running_cluster_is_used(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", cluster)
    monkeypatch.chdir(tmp_path)
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test
    handler = signal.getsignal(signal.SIGTERM)
    kinds = ["a", "dies once", "always dies", "b"]
    outcomes = {
        job[0]: (result, error)
        for job, result, error in run_ray(work, [(k, str(tmp_path)) for k in kinds], 2)
    }
    assert {kind for kind, (result, _) in outcomes.items() if result == f"{kind} in {tmp_path}"} == {
        "a", "b", "dies once",
    }  # fmt: skip
    assert isinstance(outcomes["always dies"][1], WorkerDied)
    assert 2 <= len((tmp_path / "seen-always dies").read_text()) <= 3, (
        "twice alone, and perhaps once in company"
    )
    assert signal.getsignal(signal.SIGTERM) is handler and not ray.is_initialized()
    # a relative folder is that of the driver, wherever the cluster was started
    records = Pool("pool").run([SPEC, SPEC.replace({"seed": 1})], engine="ray", measures=())
    assert [record.status for record in records] == ["finished", "finished"]
    assert len(list(tmp_path.glob("pool/runs/*/record.json"))) == 2


def test_an_absent_cluster_at_the_address_is_an_error() -> None:
    with pytest.raises(GapscopeError, match=r"running Ray cluster.*nothing answers"):
        list(run_ray(work, [("a", "")], 1, address=f"127.0.0.1:{free_port()}"))


def sleep_on_node(job: tuple[str, str]) -> tuple[str, list[Any]]:
    """Mark the start of the job, sleep, and return node and GPUs."""
    seconds, folder = job
    node = ray.get_runtime_context().get_node_id()
    (Path(folder) / f"{node}-{time.monotonic_ns()}").touch()
    time.sleep(float(seconds))
    return node, ray.get_gpu_ids()


@pytest.fixture
def two_nodes() -> Iterator[tuple[Any, Any]]:
    """A cluster of two machines with two processors and one GPU each (counted by Ray, never used)."""
    settings: dict[str, Any] = {"num_cpus": 2, "num_gpus": 1}
    cluster = pytest.importorskip("ray.cluster_utils").Cluster(
        initialize_head=True, head_node_args=settings | {"include_dashboard": False}
    )
    second = cluster.add_node(**settings)
    cluster.wait_for_nodes()
    yield cluster, second
    cluster.shutdown()


@pytest.mark.slow
def test_a_lost_node_loses_no_job(two_nodes: tuple[Any, Any], tmp_path: Path) -> None:
    cluster, second = two_nodes
    with pytest.raises(GapscopeError, match=r"machine .*; got 2"):
        # both machines together have two
        list(run_ray(sleep_on_node, [("0", "")], 1, address=cluster.address, gpus=2))
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    nodes, jobs = set(), [("2", str(tmp_path))] * 6
    for number, (_, result, error) in enumerate(
        run_ray(sleep_on_node, jobs, 4, address=cluster.address, gpus=0.25)
    ):
        assert error is None and len(result[1]) == 1, "each job sees one GPU"
        nodes.add(result[0])
        if number == 0:  # three others are running, at least one of them there
            begun = {path.name.split("-")[0] for path in tmp_path.iterdir()}
            cluster.remove_node(second, allow_graceful=False)
    assert len(begun) == 2 and number == 5, "both machines had work, and every job came to its end"
