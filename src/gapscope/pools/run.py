"""Run of one spec: prepare, train, finalize. Failures of the network are recorded.

    run, run_specs
      |
      |  prepare    _Run.prepare    folder, stored record, machine, data; then one of three:
      |                no record or failed: data, network and Training (resumes a checkpoint)
      |                finished:            measure_stored_network (only the missing measures)
      |                diverged:            the stored record is the result
      |  train      train_all       all prepared runs, in a stack or one by one
      |  finalize   _Run.finalize   scores, weights, readings
      v
    record.json (written last, atomically; then the checkpoint is deleted)

Errors: DataNotFound, DeviceNotFound, MissingExtra, NotWritten and unreadable files concern the machine and are
returned as exceptions. Every other exception becomes a record with status "failed" (`_Run._record_failures`).
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
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
from gapscope.data import Problem, check_dataset_options
from gapscope.inspection.losses import evaluate
from gapscope.measures.registry import get_measure
from gapscope.networks import check_network_options
from gapscope.penalties.base import make_penalty
from gapscope.pools.from_spec import network_from_spec, prepare_data
from gapscope.pools.loading import copy_state, measure_stored_network
from gapscope.pools.normalization import make_penalties, population_statistics
from gapscope.pools.readings import RunOptions, failure_message, measure_record
from gapscope.results.records import RECORD, Record
from gapscope.training.checkpoint_writer import CHECKPOINT
from gapscope.training.checkpoints import save_tensors
from gapscope.training.loop import Training
from gapscope.training.multi_training import Choice, train_all

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


def _with_inputs_of(problem: Problem, other: Problem) -> Problem:
    """Return the problem, sharing the input tensors of another one if they are equal."""
    train, test = other.train.inputs, other.test.inputs
    if not (torch.equal(problem.train.inputs, train) and torch.equal(problem.test.inputs, test)):
        return problem
    return replace(problem, train=replace(problem.train, inputs=train), test=replace(problem.test, inputs=test))


class _Run:
    """Run of one network: `prepare` before training, `finalize` after it, result in `outcome`."""

    training: Training
    network: nn.Module
    problem: Problem

    def __init__(self, spec: RunSpec, folder: Path, options: RunOptions) -> None:
        self.spec, self.folder, self.options = spec, folder, options
        self.stored: Record | None = None
        self.outcome: Record | Exception | None = None
        self.seconds = 0.0

    @contextmanager
    def _record_failures(self, *faults: type[Exception]) -> Iterator[None]:
        """Record errors of the body as failures of the network, and store `faults` as the outcome."""
        try:
            yield
        except faults as error:
            self.outcome = error
            if not isinstance(error, GapscopeError):
                message = f"Data set '{self.spec.data.name}' must be readable; reading it failed: {error}."
                self.outcome = UnreadableFile(message)
        except Exception as error:
            self._write(self._failed(failure_message(error)))

    def _failed(self, message: str) -> Record:
        """Return a record of the failure, with the results finished before it."""
        stored = self.stored
        if stored is not None and stored.status == "finished":
            unmeasured = dict.fromkeys(stored.missing_measures(self.options.measures or ()), message)
            return replace(stored, unmeasured={**stored.unmeasured, **unmeasured})
        spec = self.spec
        return Record(id=spec.id, spec=spec.to_dict(), status="failed", message=message, environment=environment())

    def _write(self, record: Record) -> None:
        try:
            record.write(self.folder)
            remove_file(self.folder / CHECKPOINT)
            self.outcome = Record.read(self.folder)
        except (GapscopeError, OSError) as error:
            self.outcome = error

    def prepare(self, first: _Run, contexts: ExitStack) -> None:
        """Prepare the training, or add missing measures to a finished run and set the outcome.

        `first` is the first run of the stack, whose input tensors are shared; `contexts` stay open during training.
        """
        with self._record_failures(*ENVIRONMENT_FAULTS):
            _make_run_folder(self.folder)
            try:
                self.stored = Record.read(self.folder) if (self.folder / RECORD).exists() else None
            except DamagedFile:
                self.stored = None
            check_device(self.options.device)
            self.problem, self.corruption = prepare_data(self.spec, self.options.data_root)
        if self.outcome is not None:
            return
        with self._record_failures(NotWritten, DeviceNotFound):
            if self.stored is None or self.stored.status == "failed":
                start = time.perf_counter()
                if first is not self and hasattr(first, "problem"):
                    self.problem = _with_inputs_of(self.problem, first.problem)
                self._build(contexts)
                self.seconds = time.perf_counter() - start
            elif self.stored.status == "finished":
                weights = self.folder / "weights.safetensors"
                self._write(measure_stored_network(weights, self.options, self.stored))
            else:
                self.outcome = self.stored

    def _build(self, contexts: ExitStack) -> None:
        """Build the network and its training."""
        network, problem = network_from_spec(self.spec, self.problem).to(self.options.device), self.problem
        self.network, self.initial = network, copy_state(network)
        refresh = contexts.enter_context(population_statistics(network, self.spec, problem))

        def after_epoch(network: nn.Module, row: dict[str, Any]) -> None:
            # the population statistics are from before the last step, but the scores need those of the current weights
            refresh()
            row |= {f"test_{name}": value for name, value in evaluate(network, problem.test).items()}
            if self.options.on_epoch is not None:
                self.options.on_epoch(network, problem, row)

        self.training = Training(
            network,
            problem.train,
            self.spec.training,
            seed=self.spec.seed,
            folder=self.folder,
            penalties=make_penalties(self.spec, problem),
            on_epoch=after_epoch,
        )

    def finalize(self, error: Exception | None, seconds: float) -> None:
        """Score, measure and write the record, with the training's error and seconds."""
        self.seconds += seconds
        start = time.perf_counter()
        with self._record_failures(NotWritten, DeviceNotFound):
            if isinstance(error, UnreadableFile):  # the checkpoint is of another network
                remove_file(self.folder / CHECKPOINT)
                warnings.warn(f"{error} Its network is retrained.", DamagedFileWarning, stacklevel=2)
                with ExitStack() as contexts:
                    self._build(contexts)
                    (error,) = train_all([self.training], stack="never", largest=1)
            if error is not None:
                raise error
            record = self._score_and_measure()
            self._write(replace(record, seconds=round(self.seconds + time.perf_counter() - start, 3)))

    def _score_and_measure(self) -> Record:
        spec, result = self.spec, self.training.result
        assert result is not None
        record = Record(
            id=spec.id,
            spec=spec.to_dict(),
            status=result.status,
            message="" if result.status == "finished" else result.stop_reason,
            stopped=result.stop_reason,
            corruption=self.corruption,
            epochs_trained=len(result.history),
            environment=environment(),
            history=tuple(result.history),
        )
        if result.status != "finished":
            return record
        scores = {
            f"{split}_{name}": value
            for split, samples in (("train", self.problem.train), ("test", self.problem.test))
            for name, value in evaluate(self.network, samples).items()
        }
        if not all(map(math.isfinite, scores.values())):
            message = f"loss not finite after epoch {len(result.history)}"
            return replace(record, status="diverged", message=message, stopped=message)
        metadata = {"spec": spec.to_dict(), "corruption": self.corruption}
        save_tensors(self.folder / "weights.safetensors", self.network.state_dict(), metadata)
        return measure_record(replace(record, scores=scores), self.network, self.initial, self.problem, self.options)


def run_specs(
    specs: Sequence[RunSpec], folders: Sequence[Path], options: RunOptions, *, stack: Choice = "auto"
) -> list[Record | Exception]:
    """Run specs like `run`, with networks of one architecture in a stack (`train_many`).

    Records and checkpoints are the same, so a killed stack resumes as a stack or one by one.

    Returns:
        For each spec the record that was written, or the error that `run` would raise.
    """
    runs = [_Run(spec, folder, options) for spec, folder in zip(specs, folders, strict=True)]
    with ExitStack() as contexts:
        for item in runs:
            item.prepare(runs[0], contexts)
        to_train = [item for item in runs if item.outcome is None]
        start = time.perf_counter()
        errors = train_all([item.training for item in to_train], stack=stack, largest=len(runs))
        seconds = (time.perf_counter() - start) / max(1, len(to_train))
        for item, error in zip(to_train, errors, strict=True):
            item.finalize(error, seconds)
    return [item.outcome for item in runs if item.outcome is not None]


def run(spec: RunSpec, folder: Path, options: RunOptions) -> Record:
    """Train, score and measure the network of one spec, write its record, and return it.

    Of a finished run only missing measures are added; an interrupted run resumes after its last finished epoch.
    Failures of the network (divergence, out of memory, unknown settings) become a record with status and message.
    Failures of the machine (missing data or device, unreadable or unwritable files) raise and leave no record.

    Args:
        spec: Data, network and training of one run, or of several.
        folder: Folder of this run, created if missing; its parent must exist.
        options: Measures, number of measured samples, data root and device (`RunOptions`).

    Raises:
        NotWritten: The disk is full or read-only; finished work is unchanged, and the same call continues later.
        GapscopeError: Data, device or a package are missing on this machine, or the data are corrupted.
    """
    (outcome,) = run_specs([spec], [folder], options, stack="never")
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
