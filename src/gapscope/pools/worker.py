"""One run of a pool in a worker process, with its mirror and warnings."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gapscope.base.errors import DamagedFileWarning, WorkerDied
from gapscope.base.files import make_folder
from gapscope.base.specs import RunSpec
from gapscope.base.user_warnings import warn_user
from gapscope.pools.engines import Engine
from gapscope.pools.mirror import Mirror
from gapscope.results.records import RECORD, Record

if TYPE_CHECKING:
    from gapscope.pools.readings import RunOptions

Job = tuple[RunSpec, Path, "RunOptions"]


def run_job(job: Job, mirror: Mirror | None = None) -> tuple[Record | Exception, list[str]]:
    """Run a spec in a worker, and return its record or machine fault with the warnings of damaged files.

    With a mirror, a run that only lacks measures is fetched instead of trained again, and finished runs are copied.
    """
    from gapscope.pools.run import run

    spec, folder, options = job
    if mirror is not None:
        make_folder(folder.parent)
        if not (folder / RECORD).exists():
            mirror.get(folder.name, folder)
    outcome: Record | Exception
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DamagedFileWarning)
        try:
            outcome = run(spec, folder, options)
        except Exception as error:
            outcome = error
    notes = []
    for item in caught:
        if issubclass(item.category, DamagedFileWarning):
            notes.append(str(item.message))
        else:
            warnings.warn_explicit(item.message, item.category, item.filename, item.lineno)
    if mirror is not None and not isinstance(outcome, Exception):
        mirror.put(folder)
    return outcome, notes


def run_missing(
    missing: Sequence[RunSpec],
    folders: Mapping[str, Path],
    options: RunOptions,
    run_jobs: Engine,
    workers: int,
    mirror: Mirror | None,
) -> Iterator[tuple[RunSpec, Record | Exception]]:
    """Run specs in workers, and yield each with its record, machine fault or dead worker."""
    jobs: list[Job] = [(spec, folders[spec.id], options) for spec in missing]
    for (spec, _, _), done, error in run_jobs(
        partial(run_job, mirror=mirror), jobs, min(workers, len(jobs))
    ):
        if isinstance(error, WorkerDied):
            yield spec, error
            continue
        if error is not None:
            raise error
        outcome, notes = done
        for note in notes:
            warn_user(note, DamagedFileWarning)
        yield spec, outcome
