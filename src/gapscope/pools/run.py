"""One run: spec -> trained, scored and measured network -> record. Failure is a value."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gapscope.assessment.measure import measure, select_measures
from gapscope.base.errors import GapscopeError, NotWritten, UnreadableFile
from gapscope.base.files import to_json
from gapscope.base.randomness import stream_seed
from gapscope.base.records import Readings, Record
from gapscope.base.specs import DataSpec, Spec
from gapscope.base.version import version
from gapscope.data import Problem, prepare
from gapscope.data import check_options as check_data_options
from gapscope.inspection.losses import scores
from gapscope.measures.registry import get_measure
from gapscope.networks import build, check_options
from gapscope.penalties.registry import make_penalty
from gapscope.training.checkpoints import load_tensors, save_tensors, set_weights
from gapscope.training.loop import train


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What a run is given beside its spec; none of it changes the trained weights.

    Attributes:
        measures: Names of measures; None takes all that apply.
        measure_options: Measure name -> its keyword options.
        measure_samples: Number of training samples that are measured (the first ones); None takes all.
        data_root: Where the data lie; None looks in the usual places.
        device: Torch device.
    """

    measures: tuple[str, ...] | None = None
    measure_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    measure_samples: int | None = None
    data_root: str | None = None
    device: str = "cpu"


@lru_cache(maxsize=2)
def _prepared(data: str, root: str | None) -> tuple[Problem, dict[str, Any]]:
    """Data of a spec; a worker's next run often uses the same."""
    return prepare(DataSpec.from_dict(json.loads(data)), root=root)


def prepared(spec: Spec, root: str | None) -> tuple[Problem, dict[str, Any]]:
    """Return the (corrupted) data of a spec and the facts about the corruption, cached for the last two."""
    return _prepared(to_json(spec.data.to_dict()), root)


def build_network(spec: Spec, problem: Problem) -> nn.Module:
    """Return the untrained network of a spec: always the same weights for the same spec."""
    return build(
        spec.network.name,
        input_shape=problem.input_shape,
        n_outputs=problem.n_outputs,
        initialization=spec.network.initialization,
        generator=torch.Generator().manual_seed(stream_seed(spec.seed, "initial weights")),
        **spec.network.options,
    )


def environment() -> dict[str, Any]:
    """Versions and machine, for the record."""
    return {
        "gapscope": version(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
    }


def _final_scores(network: nn.Module, problem: Problem) -> dict[str, float]:
    train_scores, test_scores = scores(network, problem.train), scores(network, problem.test)
    return {f"train_{k}": v for k, v in train_scores.items()} | {f"test_{k}": v for k, v in test_scores.items()}


def _measured(
    record: Record, network: nn.Module, initial: Mapping[str, Tensor], problem: Problem, options: RunOptions
) -> Record:
    """The record with all asked measures: those that it has already, and the missing ones."""
    samples = problem.train
    if options.measure_samples is not None and options.measure_samples < len(samples):
        samples = samples.subset(torch.arange(options.measure_samples))
    names = [item.name for item in select_measures(options.measures, samples, has_initial=True)]
    readings, unmeasured = list(record.readings), dict(record.unmeasured)
    for name in record.missing_measures(names):
        chosen = {name: options.measure_options[name]} if name in options.measure_options else {}
        try:
            readings.extend(measure(network, samples, [name], initial=initial, options=chosen))
        except (GapscopeError, RuntimeError) as error:
            unmeasured[name] = _message(error)
    return replace(record, readings=Readings(readings), unmeasured=unmeasured, measured_samples=len(samples))


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


def _message(error: BaseException) -> str:
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "not enough memory" in str(error):
        return "out of memory: use a smaller batch, network or chunk size"
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else 'no message'}"


def _trained_record(spec: Spec, folder: Path, options: RunOptions) -> Record:
    start = time.perf_counter()
    problem, corruption = prepared(spec, options.data_root)
    network = build_network(spec, problem).to(options.device)
    initial = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
    result = train(network, problem.train, spec.training, seed=spec.seed, test=problem.test, folder=folder)
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
        record = _measured(record, network, initial, problem, options)
    return replace(record, seconds=round(time.perf_counter() - start, 3))


def _read_weights(weights: Path, data_root: str | None) -> tuple[Spec, dict[str, Tensor], Problem, dict[str, Any]]:
    """Spec and weights of a stored network with the data it was trained on."""
    tensors, facts = load_tensors(weights)
    if "spec" not in facts:
        raise UnreadableFile(
            f"{weights} must carry the spec of its network; it holds weights alone. Pass weights that a pool wrote."
        )
    spec = Spec.from_dict(facts["spec"])
    problem, corruption = prepared(spec, data_root)
    if json.loads(to_json(corruption)) != facts.get("corruption"):
        raise UnreadableFile(
            f"The data must be those that {weights} was trained on; their subset or corruption is another now. "
            "Use the data root and the version of gapscope that it was trained with."
        )
    return spec, tensors, problem, corruption


def load_network(weights: Path, data_root: str | None = None) -> tuple[nn.Module, Problem]:
    """Return a stored network with the data it was trained on.

    Args:
        weights: `weights.safetensors` of a run; it carries the spec of its network.
        data_root: Where the data lie; None looks in the usual places.

    Returns:
        The network on the CPU, and its problem with the training data as they were corrupted.
    """
    spec, tensors, problem, _ = _read_weights(weights, data_root)
    network = build_network(spec, problem)
    set_weights(network, tensors, str(weights))
    return network, problem


def read_network(weights: Path, options: RunOptions, record: Record | None = None) -> Record:
    """Measure a network whose weights a pool wrote, on the data it was trained on; nothing is written.

    Args:
        weights: `weights.safetensors` of a run; it carries the spec of its network.
        options: Measures, data and device.
        record: A record to complete by the measures that it lacks; None starts one without scores.

    Returns:
        The record with its readings.
    """
    spec, tensors, problem, corruption = _read_weights(weights, options.data_root)
    network = build_network(spec, problem).to(options.device)
    initial = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
    set_weights(network, tensors, str(weights))
    record = record or Record(id=spec.id, spec=spec.to_dict(), status="finished", corruption=corruption)
    return _measured(record, network, initial, problem, options)


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
        record = _failed_record(record, spec, options, _message(error))
    record.write(folder)
    (folder / "checkpoint.safetensors").unlink(missing_ok=True)
    return Record.read(folder)
