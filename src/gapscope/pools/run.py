"""Run of one spec: prepare, train, score, write. Failures of the network are recorded.

    run
      |
      |  _load_data    device and data
      |  _train        network and its training (resumes a checkpoint)
      |  _score        scores, weights, readings
      |                  (a finished run: `_measure_stored` instead, only the missing measures)
      |  _write        record.json (last, atomically; then the checkpoint is deleted)

Errors: DataNotFound, DeviceNotFound, MissingExtra, NotWritten and unreadable files concern the machine and are raised.
Every other exception becomes a record with status "failed".
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from gapscope.base.environment import check_device, environment
from gapscope.base.errors import (
    DamagedFile,
    DamagedFileWarning,
    DataNotFound,
    DeviceNotFound,
    GapscopeError,
    MissingExtra,
    NotWritten,
    UnreadableFile,
)
from gapscope.base.files import remove_file
from gapscope.base.specs import RunSpec
from gapscope.base.user_warnings import warn_user
from gapscope.data import Problem, check_dataset_options
from gapscope.inspection.losses import evaluate
from gapscope.measures.registry import get_measure
from gapscope.networks import check_network_options
from gapscope.penalties.base import make_penalty
from gapscope.pools.added import is_same_network, merge_records
from gapscope.pools.from_spec import network_from_spec, prepare_data
from gapscope.pools.loading import copy_state, measure_stored_network
from gapscope.pools.normalization import make_penalties, population_statistics
from gapscope.pools.readings import RunOptions, failure_message, measure_record
from gapscope.results.records import RECORD, WEIGHTS, Record, read_run
from gapscope.training.checkpoint_writer import CHECKPOINT
from gapscope.training.checkpoints import save_tensors
from gapscope.training.loop import TrainingResult, train

# faults of the machine, its disks or its data: raised, never recorded
ENVIRONMENT_FAULTS = (DataNotFound, DeviceNotFound, MissingExtra, UnreadableFile, OSError)


def check_specs(specs: Sequence[RunSpec], options: RunOptions) -> None:
    """Raise InvalidInput for unknown names and settings before training."""
    for name in (*(options.measures or ()), *options.measure_options):
        get_measure(name)
    for spec in specs:
        check_dataset_options(spec.data.name, spec.data.options)
        check_network_options(spec.network.name, spec.network.options)
        for item in spec.training.penalties:
            make_penalty(item.name, item.options)


def _make_run_folder(folder: Path) -> None:
    """Create the folder of a run in an existing pool, without temporary files of a killed run."""
    try:
        folder.mkdir(exist_ok=True)
        for temporary in folder.glob(".*.tmp"):
            temporary.unlink()
    except OSError as error:
        raise NotWritten(
            f"{folder} must be a writable folder in a pool; creating it failed ({error.strerror or error}). Has the "
            "pool been moved, or is it not shared with this machine? Run the same command again where the pool is."
        ) from None


def _stored_record(folder: Path) -> tuple[Record | None, bool]:
    """Return the record of an earlier run if it can be read, and whether the run is whole; warn if it is not."""
    if not (folder / RECORD).exists():
        return None, False
    try:
        return read_run(folder), True
    except DamagedFile as error:
        _warn_of_retraining(error)
    with suppress(DamagedFile):
        record = Record.read(folder)
        if record.id == folder.name:
            return record, False
    return None, False


def _warn_of_retraining(error: UnreadableFile) -> None:
    warn_user(f"{error} Its network is retrained.", DamagedFileWarning)


def _load_data(spec: RunSpec, options: RunOptions) -> tuple[Problem, dict[str, Any]]:
    """Return the data of a run and the metadata of their corruption."""
    try:
        check_device(options.device)
        return prepare_data(spec, options.data_root)
    except ENVIRONMENT_FAULTS as error:
        if isinstance(error, GapscopeError):
            raise
        message = f"Data set '{spec.data.name}' must be readable; reading it failed: {error}."
        raise UnreadableFile(message) from error


def _train(
    spec: RunSpec,
    folder: Path,
    options: RunOptions,
    problem: Problem,
    network: nn.Module,
    refresh: Callable[[], None],
) -> TrainingResult:
    """Train the network to the end, again from the start if its checkpoint belongs to another network."""

    def after_epoch(network: nn.Module, row: dict[str, Any]) -> None:
        # the population statistics are from before the last step, but the scores need those of the current weights
        refresh()
        row |= {
            f"test_{name}": value
            for name, value in evaluate(network, problem.test, missing=True).items()
        }
        if options.on_epoch is not None:
            options.on_epoch(network, problem, row)

    def attempt() -> TrainingResult:
        return train(
            network,
            problem.train,
            spec.training,
            seed=spec.seed,
            folder=folder,
            penalties=make_penalties(spec, problem),
            on_epoch=after_epoch,
        )

    try:
        return attempt()
    except UnreadableFile as error:  # the checkpoint is of another network; this one is as before
        remove_file(folder / CHECKPOINT)
        _warn_of_retraining(error)
        return attempt()


def _score(
    spec: RunSpec, folder: Path, problem: Problem, network: nn.Module, record: Record
) -> Record:
    """Return the record of a finished training with scores and readings, and save the weights."""
    scores = {
        f"{split}_{name}": value
        for split, samples in (("train", problem.train), ("test", problem.test))
        for name, value in evaluate(network, samples, missing=True).items()
    }
    if not all(map(math.isfinite, scores.values())):
        message = f"loss not finite after epoch {record.epochs_trained}"
        return replace(record, status="diverged", message=message, stopped=message)
    metadata = {"spec": spec.to_dict(), "corruption": record.corruption}
    save_tensors(folder / WEIGHTS, network.state_dict(), metadata)
    return replace(record, scores=scores)


def _train_and_measure(
    spec: RunSpec, folder: Path, options: RunOptions, problem: Problem, corruption: dict[str, Any]
) -> Record:
    """Train, score and measure the network of a spec, and return its record."""
    start = time.perf_counter()
    network = network_from_spec(spec, problem).to(options.device)
    initial = copy_state(network)
    with population_statistics(network, spec, problem) as refresh:
        result = _train(spec, folder, options, problem, network, refresh)
        record = Record(
            id=spec.id,
            spec=spec.to_dict(),
            status=result.status,
            stopped=result.stop_reason,
            corruption=corruption,
            epochs_trained=len(result.history),
            environment=environment(),
            history=tuple(result.history),
        )
        if record.status == "finished":
            record = _score(spec, folder, problem, network, record)
        else:
            record = replace(record, message=result.stop_reason)
        if record.status == "finished":
            record = measure_record(record, network, initial, problem, options)
    return replace(record, seconds=round(time.perf_counter() - start, 3))


def _measure_stored(weights: Path, options: RunOptions, stored: Record) -> Record | None:
    """Add missing measures to a record (None if the weights are absent or damaged: the network is trained again)."""
    if not weights.exists():
        return None
    try:
        return measure_stored_network(weights, options, stored)
    except DamagedFile as error:
        _warn_of_retraining(error)
        return None


def _failed(spec: RunSpec, stored: Record | None, options: RunOptions, error: Exception) -> Record:
    """Return a record of the failure, with the results finished before it."""
    message = failure_message(error)
    if stored is not None and stored.status == "finished":
        unmeasured = dict.fromkeys(stored.missing_measures(options.measures or ()), message)
        return replace(stored, unmeasured={**stored.unmeasured, **unmeasured})
    return Record(
        id=spec.id, spec=spec.to_dict(), status="failed", message=message, environment=environment()
    )


def _write(record: Record, folder: Path) -> Record:
    """Write the record, delete the checkpoint, and return the record as it will be read."""
    record.write(folder)
    remove_file(folder / CHECKPOINT)
    return Record.read(folder)


def run(spec: RunSpec, folder: Path, options: RunOptions) -> Record:
    """Train, score and measure the network of one spec, write its record, and return it.

    Of a finished run only missing measures are added; an interrupted run resumes after its last finished epoch.
    Failures of the network (divergence, out of memory, unknown settings) become a record with status and message.
    Failures of the machine (missing data or device, unreadable or unwritable files) raise and leave no record.

    Args:
        spec: Data, network and training of the run.
        folder: Folder of this run, created if missing; its parent must exist.
        options: Measures, number of measured samples, data root and device (`RunOptions`).

    Raises:
        NotWritten: The disk is full or read-only; finished work is unchanged, and the same call continues later.
        DeviceNotFound: This machine has no such device.
        GapscopeError: Data or a package are missing on this machine, or the data are corrupted.
    """
    _make_run_folder(folder)
    stored, is_whole = _stored_record(folder)
    try:
        problem, corruption = _load_data(spec, options)
    except ENVIRONMENT_FAULTS:
        raise
    except Exception as error:
        return _write(_failed(spec, stored, options, error), folder)
    if stored is not None and is_whole and stored.status == "diverged":
        return stored
    record = None
    try:
        if stored is not None and is_whole and stored.status == "finished":
            record = _measure_stored(folder / WEIGHTS, options, stored)
        if record is None:
            record = _train_and_measure(spec, folder, options, problem, corruption)
            if stored is not None and is_same_network(stored, record):
                record = merge_records(stored, record)  # measures of earlier runs
    except (NotWritten, DeviceNotFound):
        raise
    except Exception as error:
        record = _failed(spec, stored, options, error)
    return _write(record, folder)
