"""Work units of a pool: one run, or several that can be trained in one stack."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gapscope.base.errors import DamagedFileWarning, WorkerDied
from gapscope.base.files import make_folder, to_json
from gapscope.base.specs import RunSpec
from gapscope.pools.engines import Engine
from gapscope.pools.mirror import Mirror
from gapscope.results.records import RECORD, Record

if TYPE_CHECKING:
    from gapscope.pools.readings import RunOptions

Batch = tuple[list[RunSpec], list[Path], "RunOptions"]


def run_batch(batch: Batch, mirror: Mirror | None = None) -> list[tuple[Record | Exception, list[str]]]:
    """Run a batch in a worker, and return each record or machine fault with its warnings.

    With a mirror, a run that only lacks measures is fetched instead of trained again, and finished runs are copied.
    """
    from gapscope.pools.run import run_specs

    specs, folders, options = batch
    if mirror is not None:
        for folder in folders:
            make_folder(folder.parent)
            if not (folder / RECORD).exists():
                mirror.get(folder.name, folder)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DamagedFileWarning)
        outcomes = run_specs(specs, folders, options)
    for item in caught:
        if not issubclass(item.category, DamagedFileWarning):
            warnings.warn_explicit(item.message, item.category, item.filename, item.lineno)
    for folder, outcome in zip(folders, outcomes, strict=True):
        if mirror is not None and not isinstance(outcome, Exception):
            mirror.put(folder)
    notes = [str(item.message) for item in caught if issubclass(item.category, DamagedFileWarning)]
    return [(outcome, [] if number else notes) for number, outcome in enumerate(outcomes)]


def _stacking_key(spec: RunSpec) -> str:
    """Return a key that is equal for specs that may be trained in one stack."""
    data, training = spec.data.to_dict(), spec.training.to_dict()
    shared = ("optimizer", "nesterov", "batch_size", "augmentation", "precision")
    parts = [spec.network.to_dict() | {"initialization": ""}, spec.normalization.to_dict(),
             [item.name for item in spec.training.penalties], training["momentum"] > 0,
             {name: training[name] for name in shared},
             {name: data[name] for name in ("name", "train_size", "pixels_averaged")}]  # fmt: skip
    return to_json(parts)


def group_specs(specs: Sequence[RunSpec], stack: int, workers: int) -> list[list[RunSpec]]:
    """Divide specs into stackable batches of at most `stack`, enough for all workers."""
    groups: dict[str, list[RunSpec]] = {}
    for spec in specs:
        groups.setdefault(_stacking_key(spec) if stack > 1 else spec.id, []).append(spec)
    size = min(stack, -(-len(specs) // workers))
    return [group[start : start + size] for group in groups.values() for start in range(0, len(group), size)]


def run_batches(
    missing: Sequence[RunSpec],
    folders: Mapping[str, Path],
    options: RunOptions,
    run_jobs: Engine,
    workers: int,
    stack: int,
    mirror: Mirror | None,
) -> Iterator[tuple[RunSpec, Record | Exception]]:
    """Run specs in workers, and yield each with its record, machine fault or dead worker."""
    waiting = group_specs(missing, stack, workers)
    while waiting:
        jobs: list[Batch] = [(specs, [folders[spec.id] for spec in specs], options) for specs in waiting]
        waiting = []
        for (specs, _, _), outcomes, error in run_jobs(
            partial(run_batch, mirror=mirror), jobs, min(workers, len(jobs))
        ):
            if isinstance(error, WorkerDied) and len(specs) > 1:
                waiting += [[spec] for spec in specs]  # each alone, to find the one that kills its worker
            elif isinstance(error, WorkerDied):
                yield specs[0], error
            elif error is not None:
                raise error
            else:
                for spec, (outcome, notes) in zip(specs, outcomes, strict=True):
                    for note in notes:
                        warnings.warn(note, DamagedFileWarning, stacklevel=2)
                    yield spec, outcome
