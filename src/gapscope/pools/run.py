"""Run of one spec: prepare, train, finalize. Failures of the network are recorded.

    run, run_together
      |
      |  prepare    _Run.prepare        folder, machine, stored record; then one of three:
      |                no record or failed: _prepare_run (data, network, Training; resumes a checkpoint)
      |                finished:            measure_stored_network (only the missing measures)
      |                diverged:            the stored record is the result
      |  train      train_all           all prepared runs, in a stack or one by one
      |  finalize   _Run.finalize       _score_and_measure (scores, weights, readings), then _write_record
      v
    record.json (written last, atomically; then the checkpoint is deleted)

Errors: DataNotFound, DeviceNotFound, MissingExtra, NotWritten and unreadable files concern the machine and are
returned as exceptions. Every other exception becomes a record with status "failed" (`_Run._run_step`).
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

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
from gapscope.data import Problem, check_dataset_options
from gapscope.inspection.losses import evaluate
from gapscope.measures.registry import get_measure
from gapscope.networks import check_network_options
from gapscope.penalties.base import make_penalty
from gapscope.pools.from_spec import network_from_spec, prepared
from gapscope.pools.loading import measure_stored_network
from gapscope.pools.normalization import PopulationStatistics, penalties_of
from gapscope.pools.readings import RunOptions, failure_message, measure_record
from gapscope.results.records import RECORD, Record
from gapscope.training.checkpoint_writer import CHECKPOINT
from gapscope.training.checkpoints import save_tensors
from gapscope.training.loop import Training
from gapscope.training.multi_training import Choice, train_all


def check_specs(specs: Sequence[RunSpec], options: RunOptions) -> None:
    """Raise InvalidInput for unknown names and settings before training."""
    for name in options.measures or ():
        get_measure(name)
    for name in options.measure_options:
        get_measure(name)
    for spec in specs:
        check_dataset_options(spec.data.name, spec.data.options)
        check_network_options(spec.network.name, spec.network.options)
        for item in spec.training.penalties:
            make_penalty(item.name, item.options)


def _final_scores(network: nn.Module, problem: Problem) -> dict[str, float]:
    train_scores, test_scores = evaluate(network, problem.train), evaluate(network, problem.test)
    return {f"train_{k}": v for k, v in train_scores.items()} | {f"test_{k}": v for k, v in test_scores.items()}


# faults of the machine, its disks or its data: raised, never recorded
ENVIRONMENT_FAULTS = (DataNotFound, DeviceNotFound, MissingExtra, UnreadableFile, OSError)


@dataclass
class _PreparedRun:
    """A network to train, and the data for its record."""

    spec: RunSpec
    folder: Path
    problem: Problem
    corruption: dict[str, Any]
    network: nn.Module
    initial: dict[str, Tensor]
    training: Training
    seconds: float = 0.0


def _shared(problem: Problem, others: Sequence[_PreparedRun]) -> Problem:
    """Return the problem, sharing equal input tensors with a prepared run."""
    for other in others:
        same = [torch.equal(*pair) for pair in ((problem.train.inputs, other.problem.train.inputs),
                                                (problem.test.inputs, other.problem.test.inputs))]  # fmt: skip
        if all(same):
            train = replace(problem.train, inputs=other.problem.train.inputs)
            return replace(problem, train=train, test=replace(problem.test, inputs=other.problem.test.inputs))
    return problem


def _prepare_run(
    spec: RunSpec, folder: Path, options: RunOptions, others: Sequence[_PreparedRun], contexts: ExitStack
) -> _PreparedRun:
    start = time.perf_counter()
    problem, corruption = prepared(spec, options.data_root)
    problem = _shared(problem, others[:1])
    network = network_from_spec(spec, problem).to(options.device)
    initial = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
    statistics = PopulationStatistics(network, spec, problem)

    def after_epoch(network: nn.Module, row: dict[str, Any]) -> None:
        # population statistics are those before the last step: the scores are of the weights as they stand now
        statistics.refresh()
        row |= {f"test_{name}": value for name, value in evaluate(network, problem.test).items()}
        if options.on_epoch is not None:
            options.on_epoch(network, problem, row)

    contexts.enter_context(statistics.refresh_before_steps())
    training = Training(
        network, problem.train, spec.training, seed=spec.seed, folder=folder, penalties=penalties_of(spec, problem),
        on_epoch=after_epoch,
    )  # fmt: skip
    return _PreparedRun(spec, folder, problem, corruption, network, initial, training, time.perf_counter() - start)


def _retrain(before: _PreparedRun, options: RunOptions, error: UnreadableFile) -> _PreparedRun:
    """Delete a checkpoint that does not fit, warn, and train from scratch."""
    remove_file(before.folder / CHECKPOINT)
    warnings.warn(f"{error} Its network is retrained.", DamagedFileWarning, stacklevel=2)
    with ExitStack() as contexts:
        fresh = _prepare_run(before.spec, before.folder, options, [before], contexts)
        (failure,) = train_all([fresh.training], stack="never", largest=1)
    if failure is not None:
        raise failure
    return replace(fresh, seconds=before.seconds + fresh.seconds)


def _score_and_measure(before: _PreparedRun, options: RunOptions, error: Exception | None) -> Record:
    """Return the record after training, or raise the training's error."""
    start = time.perf_counter()
    if isinstance(error, UnreadableFile):
        before = _retrain(before, options, error)
    elif error is not None:
        raise error
    spec, result = before.spec, before.training.result
    assert result is not None
    record = Record(
        id=spec.id,
        spec=spec.to_dict(),
        status=result.status,
        message="" if result.status == "finished" else result.stop_reason,
        stopped=result.stop_reason,
        corruption=before.corruption,
        epochs_trained=len(result.history),
        environment=environment(),
        history=tuple(result.history),
    )
    if result.status == "finished":
        record = replace(record, scores=_final_scores(before.network, before.problem))
        if not all(math.isfinite(score) for score in record.scores.values()):
            message = f"loss not finite after epoch {len(result.history)}"
            record = replace(record, status="diverged", message=message, stopped=message, scores={})
    if record.status == "finished":
        facts = {"spec": spec.to_dict(), "corruption": before.corruption}
        save_tensors(before.folder / "weights.safetensors", before.network.state_dict(), facts)
        record = measure_record(record, before.network, before.initial, before.problem, options)
    return replace(record, seconds=round(before.seconds + time.perf_counter() - start, 3))


def _failed_record(record: Record | None, spec: RunSpec, options: RunOptions, message: str) -> Record:
    """Return a record of the failure, with the results finished before it."""
    if record is not None and record.status == "finished":
        unmeasured = dict.fromkeys(record.missing_measures(options.measures or ()), message)
        return replace(record, unmeasured={**record.unmeasured, **unmeasured})
    return Record(id=spec.id, spec=spec.to_dict(), status="failed", message=message, environment=environment())


def _known_record(folder: Path) -> Record | None:
    """Return the stored record, None if it is missing or corrupted."""
    try:
        return Record.read(folder) if (folder / RECORD).exists() else None
    except DamagedFile:
        return None


def _make_run_folder(folder: Path) -> None:
    """Create the folder of a run in an existing pool."""
    try:
        folder.mkdir(exist_ok=True)
        for leftover in folder.glob(".*.tmp"):  # left by a run that was killed while writing
            leftover.unlink()
    except OSError as error:
        raise NotWritten(
            f"{folder} must be a writable folder in a pool; creating it failed "
            f"({error.strerror or error}). Has the pool been moved, or is it not shared with this machine? "
            "Run the same command again where the pool is."
        ) from None


def _check_machine(spec: RunSpec, options: RunOptions) -> str:
    """Raise faults of the machine, and return faults of the data as a message."""
    try:
        check_device(options.device)
        prepared(spec, options.data_root)
    except ENVIRONMENT_FAULTS as error:
        if isinstance(error, GapscopeError):
            raise
        raise UnreadableFile(f"The data '{spec.data.name}' must be readable; reading them failed: {error}.") from None
    except Exception as error:
        return failure_message(error)
    return ""


class _Run:
    """Run of one network: `prepare` before training, `finalize` after it, result in `outcome`."""

    def __init__(self, spec: RunSpec, folder: Path, options: RunOptions) -> None:
        self.spec, self.folder, self.options = spec, folder, options
        self.known: Record | None = None
        self.prepared: _PreparedRun | None = None
        self.outcome: Record | Exception | None = None

    def _run_step(self, step: Callable[..., Record | None], *arguments: Any) -> None:
        """Run one step: record failures of the network, retain failures of the machine as errors."""
        try:
            record = step(*arguments)
            self.outcome = None if record is None else _write_record(record, self.folder)
        except (NotWritten, DeviceNotFound) as error:
            self.outcome = error
        except Exception as error:
            failed = _failed_record(self.known, self.spec, self.options, failure_message(error))
            self.outcome = _write_record(failed, self.folder)

    def prepare(self, others: Sequence[_Run], contexts: ExitStack) -> None:
        """Prepare the training, or add missing measures to a finished record."""
        try:
            _make_run_folder(self.folder)
            self.known = _known_record(self.folder)
            fault = _check_machine(self.spec, self.options)
            if fault:
                self.outcome = _write_record(_failed_record(self.known, self.spec, self.options, fault), self.folder)
            else:
                self._run_step(
                    self._prepare_or_complete, [item.prepared for item in others if item.prepared is not None], contexts
                )
        except (GapscopeError, OSError) as error:
            self.outcome = error

    def _prepare_or_complete(self, others: Sequence[_PreparedRun], contexts: ExitStack) -> Record | None:
        known = self.known
        if known is None or known.status == "failed":
            self.prepared = _prepare_run(self.spec, self.folder, self.options, others, contexts)
            return None
        if known.status == "finished":
            return measure_stored_network(self.folder / "weights.safetensors", self.options, known)
        return known

    def finalize(self, error: Exception | None, seconds: float) -> None:
        """Score, measure and write the record.

        Args:
            error: What the training raised.
            seconds: How long it took.
        """
        assert self.prepared is not None
        self.prepared.seconds += seconds
        try:
            self._run_step(_score_and_measure, self.prepared, self.options, error)
        except NotWritten as written:
            self.outcome = written


def run_together(
    specs: Sequence[RunSpec], folders: Sequence[Path], options: RunOptions, *, stack: Choice = "auto"
) -> list[Record | Exception]:
    """Run several specs as `run` does, stacking networks of one architecture.

    Records and checkpoints are those of `run`: a stack that was killed resumes in a stack or one by one.

    Args:
        folders: Folder of each run.
        stack: See `gapscope.train_many`.

    Returns:
        For each spec its record as written, or the error that `run` would raise.
    """
    runs = [_Run(spec, folder, options) for spec, folder in zip(specs, folders, strict=True)]
    with ExitStack() as contexts:
        for number, item in enumerate(runs):
            item.prepare(runs[:number], contexts)
        to_train = [item for item in runs if item.prepared is not None]
        start = time.perf_counter()
        errors = train_all(
            [item.prepared.training for item in to_train if item.prepared], stack=stack, largest=len(runs)
        )
        seconds = (time.perf_counter() - start) / max(1, len(to_train))
        for item, error in zip(to_train, errors, strict=True):
            item.finalize(error, seconds)
    return [item.outcome for item in runs if item.outcome is not None]


def run(spec: RunSpec, folder: Path, options: RunOptions) -> Record:
    """Train, score and measure the network of one spec, write its record, and return it.

    An existing record is only completed by its missing measures. An interrupted training resumes after its last
    finished epoch. Failures of the network (divergence, out of memory, unknown settings) become a record with status
    and message. Failures of the machine (missing data or device, unreadable or unwritable files) raise, and nothing
    is recorded.

    Args:
        folder: Folder of this run, created if missing; its parent must exist.

    Raises:
        NotWritten: The disk is full or read-only; what was finished is untouched, and the same command continues later.
        DataNotFound: The data are not on this machine.
        UnreadableFile: The data are damaged.
        DeviceNotFound: The device is not on this machine.
        MissingExtra: A package that the data need is not installed.
    """
    (outcome,) = run_together([spec], [folder], options, stack="never")
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _write_record(record: Record, folder: Path) -> Record:
    record.write(folder)
    remove_file(folder / CHECKPOINT)
    return Record.read(folder)
