"""One run: spec -> trained, scored and measured network -> record. Failure is a value."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from gapscope.base.environment import environment
from gapscope.base.errors import GapscopeError, NotWritten
from gapscope.base.records import Record
from gapscope.base.specs import Spec
from gapscope.data import Problem
from gapscope.data import check_options as check_data_options
from gapscope.inspection.losses import scores
from gapscope.measures.registry import get_measure
from gapscope.networks import check_options
from gapscope.penalties.registry import make_penalty
from gapscope.pools.from_spec import build_network, prepared
from gapscope.pools.normalization import PopulationStatistics, penalties_of
from gapscope.pools.readings import RunOptions, failure_message, with_readings
from gapscope.pools.stored import read_network
from gapscope.training.checkpoints import save_tensors
from gapscope.training.loop import TrainingResult, train


def check_specs(specs: Sequence[Spec], options: RunOptions) -> None:
    """Raise InvalidInput for names and settings that no run could use, before anything is trained."""
    for name in options.measures or ():
        get_measure(name)
    for name in options.measure_options:
        get_measure(name)
    for spec in specs:
        check_data_options(spec.data.name, spec.data.options)
        check_options(spec.network.name, spec.network.options)
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


def _trained_record(spec: Spec, folder: Path, options: RunOptions) -> Record:
    start = time.perf_counter()
    problem, corruption = prepared(spec, options.data_root)
    network = build_network(spec, problem).to(options.device)
    initial = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
    result = _train(network, spec, problem, folder, options)
    record = Record(
        id=spec.id,
        spec=spec.to_dict(),
        status=result.status,
        message="" if result.status == "finished" else result.stopped,
        stopped=result.stopped,
        corruption=corruption,
        epochs_trained=len(result.history),
        environment=environment(),
    )
    if result.status == "finished":
        facts = {"spec": spec.to_dict(), "corruption": corruption}
        save_tensors(folder / "weights.safetensors", network.state_dict(), facts)
        record = replace(record, scores=_final_scores(network, problem))
        record = with_readings(record, network, initial, problem, options)
    return replace(record, seconds=round(time.perf_counter() - start, 3))


def _failed_record(record: Record | None, spec: Spec, options: RunOptions, message: str) -> Record:
    """A record of the failure; what was finished before is kept."""
    if record is not None and record.status == "finished":
        untaken = dict.fromkeys(record.missing_measures(options.measures or ()), message)
        return replace(record, unmeasured={**record.unmeasured, **untaken})
    return Record(id=spec.id, spec=spec.to_dict(), status="failed", message=message, environment=environment())


def run(spec: Spec, folder: Path, options: RunOptions) -> Record:
    """Train, score and measure the network of one spec, write its record, and return it.

    A record that exists is only completed by measures that it lacks. An interrupted training goes on from its last
    finished epoch. Whatever goes wrong with this network (diverged, out of memory, a setting that it does not know)
    becomes a record with its status and message; only a file that cannot be written raises.

    Args:
        spec: What to train.
        folder: Folder of this run; made if missing.
        options: Measures, data and device.

    Returns:
        The record, as written.

    Raises:
        NotWritten: The disk is full; what was finished is untouched, and the same command goes on later.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(".*.tmp"):  # of a run that was killed while it wrote
        leftover.unlink()
    record = Record.read(folder) if (folder / "record.json").exists() else None
    try:
        if record is None or record.status == "failed":
            record = _trained_record(spec, folder, options)
        elif record.status == "finished":
            record = read_network(folder / "weights.safetensors", options, record)
    except NotWritten:
        raise
    except (GapscopeError, RuntimeError, ValueError, TypeError, ArithmeticError, MemoryError) as error:
        record = _failed_record(record, spec, options, failure_message(error))
    record.write(folder)
    (folder / "checkpoint.safetensors").unlink(missing_ok=True)
    return Record.read(folder)
