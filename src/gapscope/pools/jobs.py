"""Cached function calls in worker processes, which resume after an interruption."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from gapscope.base.errors import GapscopeError, InvalidInput, NotWritten, check_range
from gapscope.base.files import read_json, to_json, write_atomically
from gapscope.pools.engines import run_local

Job = Callable[[], Any]


def _compute(job: tuple[str, Job, Path]) -> None:
    _, function, path = job
    write_atomically(path, to_json(function()) + "\n")


def _run_here(
    function: Callable[[tuple[str, Job, Path]], None], jobs: list[tuple[str, Job, Path]]
) -> Iterator[tuple[tuple[str, Job, Path], None, Exception | None]]:
    """Run jobs in this process, with one thread so that results equal those of workers."""
    import torch

    threads = torch.get_num_threads()
    for job in jobs:
        torch.set_num_threads(1)
        try:
            function(job)
            yield job, None, None
        except Exception as error:
            yield job, None, error
        finally:
            torch.set_num_threads(threads)


def run_cached(
    jobs: Mapping[str, Job],
    folder: str | Path,
    *,
    workers: int = 2,
    on_done: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """Return the result of every job, read from `folder` if it was computed before.

    A result is stored in `folder/<name>.json`, written atomically, so a second call computes only what is missing. The
    name must therefore identify everything that the result depends on (the id of a spec, for example). If a job
    fails, the others are still finished and stored before the failure is raised.

    Args:
        jobs: Name -> function without arguments that returns JSON-serializable values; picklable (`functools.partial`
            of a module's function) unless `workers` is 1.
        folder: Folder of the pool, or of one run (`runs/<id>`).
        workers: Number of processes, one thread each; 1 calls the functions in this process.
        on_done: Called in this process after each computed job with its name, the number of computed jobs and their
            total.

    Returns:
        Name -> result as read from JSON (tuples become lists, non-finite numbers strings), in the order of `jobs`.

    Raises:
        InvalidInput: A name is no valid file name.
        GapscopeError: Some jobs failed; the first failure is the cause.
        NotWritten: A result could not be written; no further job was run.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run_cached({"third": partial(pow, 2, 3)}, folder, workers=1)
    {'third': 8}
    """
    check_range("workers", workers, 1)
    for name in jobs:
        if not name or name.startswith(".") or "/" in name or "\\" in name:
            raise InvalidInput(
                f"A job's name must be usable as the name of a file; got {name!r}. Remove slashes and a leading dot."
            )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / f"{name}.json" for name in jobs}
    missing = [
        (name, function, paths[name]) for name, function in jobs.items() if not paths[name].exists()
    ]
    run = _run_here if workers == 1 else partial(run_local, workers=min(workers, len(missing)) or 1)
    failures: dict[str, BaseException] = {}
    for number, ((name, _, _), _, error) in enumerate(run(_compute, missing), start=1):
        if isinstance(error, NotWritten):
            raise error
        if error is not None:
            failures[name] = error
        elif on_done is not None:
            on_done(name, number, len(missing))
    if failures:
        name, error = next(iter(failures.items()))
        saved = f" The others are saved in {folder}." if len(failures) < len(jobs) else ""
        raise GapscopeError(
            f"All jobs must succeed; {len(failures)} of {len(missing)} failed, first {name!r} "
            f"({type(error).__name__}: {error}).{saved} Fix this job and call again."
        ) from error
    return {name: read_json(path, is_recreated=True) for name, path in paths.items()}
