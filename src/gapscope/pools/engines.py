"""Engines that run a pool: worker processes on this machine, or a Ray cluster."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import Any, TypeVar

from gapscope.base.errors import GapscopeError, InvalidInput, WorkerDied, check_choice, check_range

ENGINES = ("local", "ray")
# (function, jobs, workers) -> (job, result, error) as they end
Engine = Callable[..., Iterator[tuple[Any, Any, BaseException | None]]]


def select_engine(engine: str, address: str | None = None, gpus: float = 0.0) -> Engine:
    """Return `run_local` or `run_ray` with its settings, else raise InvalidInput."""
    check_choice("engine", engine, ENGINES)
    check_range("gpus", gpus, 0)
    if gpus > 1 and gpus != int(gpus):
        raise InvalidInput(
            f"gpus must be at most 1, or an integer; got {gpus:g}. Use {int(gpus)} or {int(gpus) + 1}."
        )
    if engine == "ray":
        from gapscope.pools.ray_engine import run_ray

        return partial(run_ray, address=address, gpus=gpus)
    if address is not None or gpus:
        raise InvalidInput(
            "address and gpus need a Ray cluster; got them with engine 'local'. Pass engine='ray', or neither of them."
        )
    return run_local


Job = TypeVar("Job")
# once may be chance
MAX_DEATHS = 2
# by judgment: such workers find no memory
MAX_DEATHS_AT_START = 10


def _start_worker() -> None:
    """Initialize a worker: one thread, no interrupts, end with the parent."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def end_with_parent() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    import torch

    torch.set_num_threads(1)


def _submit(executor: ProcessPoolExecutor, function: Callable[..., Any], *job: Any) -> Future[Any]:
    """Submit a job, for which the executor may start a worker.

    Raises:
        BrokenProcessPool: A worker was killed, or no other can start.
    """
    try:
        return executor.submit(function, *job)
    except (ValueError, OSError) as error:
        # a worker that is killed while the next one starts closes the pipes that this one was to inherit
        raise BrokenProcessPool(f"a worker could not start: {error}") from error


def _ready_executor(workers: int) -> ProcessPoolExecutor:
    """Return an executor with one running worker, replacing workers that die at start."""
    for _ in range(MAX_DEATHS_AT_START):
        context = multiprocessing.get_context("spawn")
        executor = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker)
        try:
            done, _ = wait(
                [_submit(executor, int) for _ in range(workers)], return_when=FIRST_COMPLETED
            )
            done.pop().result()
            return executor
        except BrokenProcessPool:
            started = list((executor._processes or {}).values())
        # a broken executor terminates its workers, but would wait for one that is just starting
        _terminate(executor)
        # 1 is an exception; a kill gives a negative code
        if any(process.exitcode == 1 for process in started):
            raise GapscopeError(
                "Worker processes must be able to import the main script; they ended while they did so. Put what "
                'starts the run behind `if __name__ == "__main__":`, in a file.'
            )
    raise GapscopeError(
        f"Worker processes must be able to start; {MAX_DEATHS_AT_START} in a row were killed at the start, perhaps for "
        "lack of memory. Use fewer workers, then run the same command again; finished networks are saved."
    )


def _terminate(executor: ProcessPoolExecutor) -> None:
    for process in list((executor._processes or {}).values()):
        process.terminate()
    executor.shutdown(wait=True, cancel_futures=True)


def run_local(
    function: Callable[[Job], Any], jobs: Iterable[Job], workers: int
) -> Iterator[tuple[Job, Any, BaseException | None]]:
    """Run `function` on jobs in worker processes, and yield (job, result, error).

    If a worker is killed, the jobs that were running run again, each alone. A job whose worker dies `MAX_DEATHS` times
    while it runs alone is yielded with a `WorkerDied`. Workers that are killed while idle or starting are replaced.
    Leaving the iteration early (an exception, Ctrl-C) terminates the workers.

    Raises:
        GapscopeError: Workers cannot start: the main script starts the run when it is imported, or
            `MAX_DEATHS_AT_START` in a row were killed.
    """
    waiting = deque(jobs)
    suspects = deque()
    if not waiting:
        return
    deaths: Counter[int] = Counter()
    executor = _ready_executor(workers)
    size = workers
    running: dict[Future[Any], Job] = {}
    broken = ended = False
    try:
        while waiting or suspects or running:
            queue, limit = (suspects, 1) if suspects else (waiting, workers)
            # a suspect runs in an executor of one worker, so that a death can only be its own
            if not running and (broken or size != limit):
                _terminate(executor)
                executor = _ready_executor(limit)
                size = limit
                broken = False
            try:
                while queue and len(running) < limit:
                    running[_submit(executor, function, queue[0])] = queue[0]
                    queue.popleft()
            except BrokenProcessPool:  # an idle worker was killed
                broken = True
                if not running:
                    continue
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            lost = [future for future in done if isinstance(future.exception(), BrokenProcessPool)]
            for future in done:
                if future not in lost:
                    error = future.exception()
                    yield running.pop(future), None if error else future.result(), error
            if lost:
                broken = True
                for job in running.values():
                    deaths[id(job)] += len(running) == limit == 1
                    if deaths[id(job)] >= MAX_DEATHS:
                        yield job, None, WorkerDied(str(lost[0].exception()))
                    else:
                        suspects.append(job)
                running.clear()
        ended = not broken
    finally:
        if ended:  # idle workers exit by themselves and clean up
            executor.shutdown()
        else:
            _terminate(executor)
