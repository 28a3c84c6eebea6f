"""Work units of a pool: one run, or several that can be trained in one stack."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gapscope.base.errors import DamagedFileWarning
from gapscope.base.files import make_folder, to_json
from gapscope.base.specs import RunSpec
from gapscope.results.records import Record

if TYPE_CHECKING:
    from gapscope.pools.readings import RunOptions

Batch = tuple[list[RunSpec], list[Path], "RunOptions"]


def run_batch(batch: Batch) -> list[tuple[Record | Exception, list[str]]]:
    """Run a batch in a worker; return records or faults of the machine, and notes."""
    from gapscope.pools.run import run_together

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DamagedFileWarning)
        outcomes = run_together(*batch)
    for item in caught:
        if not issubclass(item.category, DamagedFileWarning):
            warnings.warn_explicit(item.message, item.category, item.filename, item.lineno)
    notes = [str(item.message) for item in caught if issubclass(item.category, DamagedFileWarning)]
    return [(outcome, [] if number else notes) for number, outcome in enumerate(outcomes)]


def _stacking_key(spec: RunSpec) -> str:
    """Return a key that is equal for specs that may be trained in one stack."""
    data, training = spec.data.to_dict(), spec.training.to_dict()
    kept = ("optimizer", "nesterov", "batch_size", "augmentation", "precision")
    parts = [spec.network.to_dict() | {"initialization": ""}, spec.normalization.to_dict(),
             [item.name for item in spec.training.penalties], training["momentum"] > 0,
             {name: training[name] for name in kept},
             {name: data[name] for name in ("name", "train_size", "pixels_averaged")}]  # fmt: skip
    return to_json(parts)


def group_specs(specs: Sequence[RunSpec], stack: int, workers: int) -> list[list[RunSpec]]:
    """Divide specs into batches of at most `stack` that are alike, enough for all workers."""
    groups: dict[str, list[RunSpec]] = {}
    for spec in specs:
        groups.setdefault(_stacking_key(spec) if stack > 1 else spec.id, []).append(spec)
    most = min(stack, -(-len(specs) // workers))
    return [group[start : start + most] for group in groups.values() for start in range(0, len(group), most)]


def dead_worker_record(spec: RunSpec, folder: Path) -> Record:
    """Write and return the record of a network that killed its worker."""
    record = Record(
        id=spec.id,
        spec=spec.to_dict(),
        status="failed",
        message="the worker process died twice on this network alone (killed, perhaps for lack of memory)",
    )
    make_folder(folder)
    record.write(folder)
    return record
