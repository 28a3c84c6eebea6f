"""Ray engine: runs as tasks of a Ray cluster."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from gapscope.base.errors import GapscopeError, WorkerDied, require_extra
from gapscope.pools.engines import MAX_DEATHS

Job = TypeVar("Job")


def _is_reachable(address: str) -> bool:
    """Return True if something listens at the address (Ray itself waits for minutes)."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=3).close()
    except (OSError, ValueError):
        return False
    return True


def running_cluster() -> str | None:
    """Return the address of a running cluster (RAY_ADDRESS or `ray start`), or None."""
    address = os.environ.get("RAY_ADDRESS", "")
    if address and address not in ("auto", "local"):
        if not _is_reachable(address):
            raise GapscopeError(
                f"RAY_ADDRESS must be the address of a running Ray cluster; nothing answers at {address!r}. Start the "
                "cluster, or unset RAY_ADDRESS to use this machine alone."
            )
        return address
    # a cluster that was killed leaves this file behind
    file = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster"
    if (
        address != "local"
        and file.is_file()
        and _is_reachable(local_address := file.read_text().strip())
    ):
        return local_address
    return None


@contextmanager
def _connected(workers: int, address: str | None) -> Iterator[Any]:
    """Yield Ray, connected to a running cluster or to a local one of `workers` CPUs."""
    require_extra("ray", "ray")
    import ray  # pyright: ignore[reportMissingImports]

    if ray.is_initialized():
        yield ray
        return
    if address and not _is_reachable(address):
        raise GapscopeError(
            f"address must be that of a running Ray cluster, such as '10.0.0.1:6379'; nothing answers at {address!r}. "
            "Start the cluster with: ray start --head."
        )
    address = address or running_cluster()
    settings: dict[str, Any] = {"address": "local", "num_cpus": workers, "include_dashboard": False}
    in_main_thread = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        if address:
            settings = {"address": address}
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **settings)
        if in_main_thread:  # Ray's handler would end this process without a message
            signal.signal(signal.SIGTERM, handler)
        yield ray
    finally:
        ray.shutdown()
        if in_main_thread:
            signal.signal(signal.SIGTERM, handler)


def _in_folder(function: Callable[[Any], Any], folder: str, job: Any) -> Any:
    """Run a job in the driver's working folder with one thread."""
    import torch

    if Path(folder).is_dir():
        os.chdir(folder)
    torch.set_num_threads(1)
    return function(job)


def run_ray(
    function: Callable[[Job], Any],
    jobs: Iterable[Job],
    workers: int,
    *,
    address: str | None = None,
    gpus: float = 0.0,
) -> Iterator[tuple[Job, Any, BaseException | None]]:
    """Run `function` on every job as a Ray task and yield (job, result, error) as they end.

    The cluster is the one that is connected already, else at `address`, at RAY_ADDRESS or on this machine; otherwise a
    local one with `workers` CPUs is started and stopped at the end. A task whose worker or node dies runs again, alone;
    after `MAX_DEATHS` deaths alone it is yielded with its error. `address` and `gpus` are those of `Pool.run`.

    Raises:
        GapscopeError: Nothing answers at the address, no machine of the cluster has so many GPUs, or it was lost.
    """
    with _connected(workers, address) as ray:
        from ray import exceptions  # pyright: ignore[reportMissingImports]

        # a task runs on one machine, and Ray would wait forever for one with enough GPUs
        largest = max(
            (node["Resources"].get("GPU", 0.0) for node in ray.nodes() if node["Alive"]),
            default=0.0,
        )
        if largest < gpus:
            raise GapscopeError(
                f"gpus must be available on one machine of the cluster; got {gpus:g}, and the largest has {largest:g}. "
                "Pass fewer, or add a machine with more GPUs."
            )
        task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(_in_folder)
        waiting = deque(jobs)
        suspects = deque()
        running: dict[Any, tuple[Job, bool]] = {}  # task -> its job, and whether it runs alone
        deaths: Counter[int] = Counter()
        while waiting or suspects or running:
            queue, limit = (suspects, 1) if suspects else (waiting, workers)
            while queue and len(running) < limit:
                job = queue.popleft()
                running[task.remote(function, str(Path.cwd()), job)] = job, limit == 1
            try:
                (done,), _ = ray.wait(list(running), num_returns=1)
                result = ray.get(done)
            except exceptions.RayTaskError as error:
                yield running.pop(done)[0], None, error.as_instanceof_cause()
            except (
                exceptions.WorkerCrashedError,
                exceptions.NodeDiedError,
                exceptions.OutOfMemoryError,
            ) as error:
                job, alone = running.pop(done)
                deaths[id(job)] += alone
                if deaths[id(job)] >= MAX_DEATHS:
                    yield job, None, WorkerDied(str(error))
                else:
                    suspects.append(job)
            except (exceptions.RayError, SystemExit) as error:
                raise GapscopeError(
                    f"The Ray cluster must stay up while a pool runs; it was lost ({type(error).__name__}). "
                    "Finished networks are saved; run the same command again."
                ) from None
            else:
                yield running.pop(done)[0], result, None
