"""One run: spec -> trained, scored and measured network -> record. Failure is a value."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from gapscope.base.devices import check_device
from gapscope.base.environment import environment
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
from gapscope.base.records import Record
from gapscope.base.specs import Spec
from gapscope.data import Problem, check_dataset_options
from gapscope.inspection.losses import scores
from gapscope.measures.registry import get_measure
from gapscope.networks import check_network_options
from gapscope.penalties.registry import make_penalty
from gapscope.pools.from_spec import build_network, prepared
from gapscope.pools.normalization import PopulationStatistics, penalties_of
from gapscope.pools.readings import RunOptions, failure_message, with_readings
from gapscope.pools.stored import read_network
from gapscope.training.checkpoints import save_tensors
from gapscope.training.loop import CHECKPOINT, TrainingResult, train


def check_specs(specs: Sequence[Spec], options: RunOptions) -> None:
    """Raise InvalidInput for names and settings that no run could use, before anything is trained."""
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
    train_scores, test_scores = scores(network, problem.train), scores(network, problem.test)
    return {f"train_{k}": v for k, v in train_scores.items()} | {f"test_{k}": v for k, v in test_scores.items()}


def _train(network: nn.Module, spec: Spec, problem: Problem, folder: Path, options: RunOptions) -> TrainingResult:
    statistics = PopulationStatistics(network, spec, problem)

    def after_epoch(network: nn.Module, row: dict[str, Any]) -> None:
        # population statistics are those before the last step: the scores are of the weights as they stand now
        statistics.refresh()
        row |= {f"test_{name}": value for name, value in scores(network, problem.test).items()}
        if options.on_epoch is not None:
            options.on_epoch(network, problem, row)

    with statistics.before_every_step():
        return train(
            network, problem.train, spec.training, seed=spec.seed, folder=folder,
            penalties=penalties_of(spec, problem), on_epoch=after_epoch,
        )  # fmt: skip


# what is wrong with the machine, its disks or its data; no network is to blame for it
ENVIRONMENT_FAULTS = (DataNotFound, DeviceNotFound, MissingExtra, UnreadableFile, OSError)


def _trained(network: nn.Module, problem: Problem, spec: Spec, folder: Path, options: RunOptions) -> TrainingResult:
    """Train, from the checkpoint if there is one; one that does not fit (any more) is thrown away."""
    try:
        return _train(network, spec, problem, folder, options)
    except UnreadableFile as error:
        remove_file(folder / CHECKPOINT)
        warnings.warn(f"{error} Its network is trained anew.", DamagedFileWarning, stacklevel=2)
        network.load_state_dict(build_network(spec, problem).to(options.device).state_dict())
        return _train(network, spec, problem, folder, options)


def _trained_record(spec: Spec, folder: Path, options: RunOptions) -> Record:
    start = time.perf_counter()
    problem, corruption = prepared(spec, options.data_root)
    network = build_network(spec, problem).to(options.device)
    initial = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
    result = _trained(network, problem, spec, folder, options)
    record = Record(
        id=spec.id,
        spec=spec.to_dict(),
        status=result.status,
        message="" if result.status == "finished" else result.stopped,
        stopped=result.stopped,
        corruption=corruption,
        epochs_trained=len(result.history),
        environment=environment(),
        history=tuple(result.history),
    )
    if result.status == "finished":
        record = replace(record, scores=_final_scores(network, problem))
        if not all(math.isfinite(score) for score in record.scores.values()):
            message = f"loss not finite after epoch {len(result.history)}"
            record = replace(record, status="diverged", message=message, stopped=message, scores={})
    if record.status == "finished":
        facts = {"spec": spec.to_dict(), "corruption": corruption}
        save_tensors(folder / "weights.safetensors", network.state_dict(), facts)
        record = with_readings(record, network, initial, problem, options)
    return replace(record, seconds=round(time.perf_counter() - start, 3))


def _failed_record(record: Record | None, spec: Spec, options: RunOptions, message: str) -> Record:
    """A record of the failure; what was finished before is kept."""
    if record is not None and record.status == "finished":
        untaken = dict.fromkeys(record.missing_measures(options.measures or ()), message)
        return replace(record, unmeasured={**record.unmeasured, **untaken})
    return Record(id=spec.id, spec=spec.to_dict(), status="failed", message=message, environment=environment())


def _known_record(folder: Path) -> Record | None:
    """The record that is there; a damaged one counts as none."""
    try:
        return Record.read(folder) if (folder / "record.json").exists() else None
    except DamagedFile:
        return None


def _make_run_folder(folder: Path) -> None:
    """Make the folder of a run inside its pool, which must be there: a pool that was moved is not begun anew."""
    try:
        folder.mkdir(exist_ok=True)
        for leftover in folder.glob(".*.tmp"):  # of a run that was killed while it wrote
            leftover.unlink()
    except OSError as error:
        raise NotWritten(
            f"{folder} must be a folder in a pool that this process can write; making it failed "
            f"({error.strerror or error}). Has the pool been moved, or is it not shared with this machine? "
            "Run the same command again where the pool is."
        ) from None


def run(spec: Spec, folder: Path, options: RunOptions) -> Record:
    """Train, score and measure the network of one spec, write its record, and return it.

    A record that exists is only completed by measures that it lacks. An interrupted training goes on from its last
    finished epoch. Whatever goes wrong with this network (diverged, out of memory, a setting that it does not know)
    becomes a record with its status and message. What is wrong with the machine (data or device absent, a file that
    cannot be read or written) raises, and nothing is recorded.

    Args:
        spec: What to train.
        folder: Folder of this run; made if missing, in a folder that is there.
        options: Measures, data and device.

    Returns:
        The record, as written.

    Raises:
        NotWritten: The disk is full or read-only; what was finished is untouched, and the same command goes on later.
        DataNotFound: The data are not on this machine.
        UnreadableFile: The data are damaged.
        DeviceNotFound: The device is not on this machine.
        MissingExtra: A package that the data need is not installed.
    """
    _make_run_folder(folder)
    record = _known_record(folder)
    try:
        check_device(options.device)
        prepared(spec, options.data_root)
    except ENVIRONMENT_FAULTS as error:
        if isinstance(error, GapscopeError):
            raise
        raise UnreadableFile(f"The data '{spec.data.name}' must be readable; reading them failed: {error}.") from None
    except Exception as error:
        return _written(_failed_record(record, spec, options, failure_message(error)), folder)
    try:
        if record is None or record.status == "failed":
            record = _trained_record(spec, folder, options)
        elif record.status == "finished":
            record = read_network(folder / "weights.safetensors", options, record)
    except (NotWritten, DeviceNotFound):
        raise
    except Exception as error:
        record = _failed_record(record, spec, options, failure_message(error))
    return _written(record, folder)


def _written(record: Record, folder: Path) -> Record:
    record.write(folder)
    remove_file(folder / CHECKPOINT)
    return Record.read(folder)
