"""The Ray engine: the same runs as plain tasks over a cluster whose nodes share the pool's folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from gapscope.base.errors import WorkerDied, require_extra

Job = TypeVar("Job")


def run_ray(
    function: Callable[[Job], Any], jobs: Iterable[Job], workers: int
) -> Iterator[tuple[Job, Any, BaseException | None]]:
    """Run `function` on every job as a Ray task and yield (job, result, error) as they end.

    A cluster that is connected already is used; otherwise a local one with `workers` processors is started and
    stopped at the end. A task whose worker dies runs again twice before it is given up.

    Args:
        function: A picklable function.
        jobs: Picklable arguments.
        workers: Largest number of tasks at a time.

    Yields:
        The job, what the function returned, and None or what it raised.
    """
    require_extra("ray", "ray")
    import ray  # pyright: ignore[reportMissingImports]
    from ray.exceptions import RayTaskError, WorkerCrashedError  # pyright: ignore[reportMissingImports]

    def one_thread(job: Job) -> Any:
        import torch

        torch.set_num_threads(1)
        return function(job)

    own_cluster = not ray.is_initialized()
    if own_cluster:
        ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False)
    try:
        task = ray.remote(num_cpus=1, max_retries=2)(one_thread)
        waiting = list(jobs)
        running: dict[Any, Job] = {}
        while waiting or running:
            while waiting and len(running) < workers:
                job = waiting.pop(0)
                running[task.remote(job)] = job
            (done,), _ = ray.wait(list(running), num_returns=1)
            job = running.pop(done)
            try:
                yield job, ray.get(done), None
            except WorkerCrashedError as error:
                yield job, None, WorkerDied(str(error))
            except RayTaskError as error:
                yield job, None, error.as_instanceof_cause()
    finally:
        if own_cluster:
            ray.shutdown()
