"""Cached function calls in worker processes: each runs once, a stopped run resumes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from gapscope.base.errors import GapscopeError, InvalidInput, NotWritten, check_range
from gapscope.base.files import read_json, to_json, write_atomically
from gapscope.pools.engines import run_local

Job = Callable[[], Any]


def _keep(job: tuple[str, Job, Path]) -> None:
    _, function, path = job
    write_atomically(path, to_json(function()) + "\n")


def _in_this_process(
    function: Callable[[tuple[str, Job, Path]], None], jobs: list[tuple[str, Job, Path]]
) -> Iterator[tuple[tuple[str, Job, Path], None, Exception | None]]:
    """Run jobs in this process, in one thread so that results have the same digits."""
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
    """Return what every job gives, from `folder` where it was computed before.

    A job's answer lies in `folder/<name>.json`, written atomically: calling again, after whatever ended the
    call before, does only what is missing. So the name must say everything that the answer depends on (the id of a
    spec, for example). A job that fails does not lose the others: they are all finished and kept before the failure
    is raised.

    Args:
        jobs: Name -> function without arguments that returns JSON-serializable values; picklable (`functools.partial`
            of a function of a module) unless `workers` is 1.
        workers: Number of processes, one thread each; 1 calls the functions in this process.
        on_done: Called in this process after each job that was not kept yet, with its name, how many of them are done
            and how many there are.

    Returns:
        Name -> answer as JSON keeps it (tuples are lists, infinities and NaN strings that `float` reads), in the order
        of `jobs`.

    Raises:
        InvalidInput: A name cannot be that of a file.
        GapscopeError: Some jobs failed; the first failure is the cause.
        NotWritten: An answer could not be written; nothing further was tried.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run_cached({"third": partial(pow, 2, 3)}, folder, workers=1)
    {'third': 8}
    """
    check_range("workers", workers, 1)
    for name in jobs:
        if not name or name.startswith(".") or "/" in name or "\\" in name:
            raise InvalidInput(
                f"A job's name must be usable as the name of a file; got {name!r}. Leave out slashes and a leading dot."
            )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / f"{name}.json" for name in jobs}
    missing = [(name, function, paths[name]) for name, function in jobs.items() if not paths[name].exists()]
    run = _in_this_process if workers == 1 else partial(run_local, workers=min(workers, len(missing)) or 1)
    failures: dict[str, BaseException] = {}
    for number, ((name, _, _), _, error) in enumerate(run(_keep, missing), start=1):
        if isinstance(error, NotWritten):
            raise error
        if error is not None:
            failures[name] = error
        elif on_done is not None:
            on_done(name, number, len(missing))
    if failures:
        name, error = next(iter(failures.items()))
        raise GapscopeError(
            f"All jobs must succeed; {len(failures)} of {len(missing)} failed, first {name!r} "
            f"({type(error).__name__}: {error}). The others are saved in {folder}: fix this one and call again."
        ) from error
    return {name: read_json(path) for name, path in paths.items()}
