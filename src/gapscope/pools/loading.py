"""Loading of a pool's networks, and records of networks trained elsewhere."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from gapscope.base.arguments import check_arguments
from gapscope.base.environment import environment
from gapscope.base.errors import InvalidInput, UnreadableFile
from gapscope.base.files import to_json
from gapscope.base.options import as_jsonable
from gapscope.base.samples import Samples, as_samples
from gapscope.base.specs import RunSpec
from gapscope.base.targets import require_targets
from gapscope.base.task import class_logits
from gapscope.data import Problem
from gapscope.inspection.losses import evaluate
from gapscope.inspection.network_checks import unwrapped
from gapscope.inspection.outputs import eager_mode, inspection_mode, network_outputs
from gapscope.inspection.validation import Ready, ready
from gapscope.inspection.wrapped_networks import unwrap_estimator
from gapscope.labels.duplicates import exact_copies_in_test
from gapscope.measures.measurement import Budget, measure
from gapscope.pools.added import added_id
from gapscope.pools.from_spec import network_from_spec, prepare_data
from gapscope.pools.readings import RunOptions, measure_record
from gapscope.results.formatting import pluralize
from gapscope.results.readings import Readings
from gapscope.results.records import Record
from gapscope.statistics.kernel_ridge import are_unequal, class_scores
from gapscope.training.checkpoints import load_tensors, set_weights


def copy_state(network: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the state dictionary."""
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}


def _load(
    weights: Path, options: RunOptions
) -> tuple[Record, nn.Module, dict[str, Tensor], Problem]:
    """Return a stored network, an empty record, its initial state and its problem."""
    tensors, metadata = load_tensors(weights)
    if "spec" not in metadata:
        raise UnreadableFile(
            f"{weights} must contain the spec of its network; it contains weights only. Pass weights that a pool "
            "wrote, or to the command line also --load, a module:function from this path to (network, training data)."
        )
    spec = RunSpec.from_dict(metadata["spec"])
    problem, corruption = prepare_data(spec, options.data_root)
    if json.loads(to_json(corruption)) != metadata.get("corruption"):
        raise UnreadableFile(
            f"The data must be those that {weights} was trained on; their subset or corruption differs. Use the data "
            "root and the version of gapscope with which it was trained."
        )
    network = network_from_spec(spec, problem).to(options.device)
    initial = copy_state(network)
    set_weights(network, tensors, str(weights))
    record = Record(id=spec.id, spec=spec.to_dict(), status="finished", corruption=corruption)
    return record, network, initial, problem


def load_with_initial(
    weights: Path, data_root: str | None = None
) -> tuple[nn.Module, dict[str, Tensor], Problem]:
    """Return a stored network on the CPU, its initial weights, and its problem."""
    _, network, initial, problem = _load(weights, RunOptions(data_root=data_root))
    return network, initial, problem


def measure_stored_network(
    weights: Path, options: RunOptions, record: Record | None = None
) -> Record:
    """Measure a network with stored weights on its training data, writing no file.

    Args:
        weights: `weights.safetensors` of a run, which contains the spec of its network.
        options: Measures, number of measured samples, data root and device (`RunOptions`).
        record: Record to which missing measures are added; None for a new one with the scores on the training data.
    """
    new_record, network, initial, problem = _load(weights, options)
    if record is None:
        scores = evaluate(network, problem.train)
        record = replace(
            new_record, scores={f"train_{name}": value for name, value in scores.items()}
        )
    return measure_record(record, network, initial, problem, options)


def _scores(result: Ready, split: str) -> dict[str, float]:
    require_targets(result.samples, f"The {split} score of a record")
    if result.mismatch:
        raise InvalidInput(f"The {split} data do not fit the network: {result.mismatch}.")
    with eager_mode():
        scores = evaluate(result.network, result.samples)
        labels = result.samples.targets
        if result.samples.is_classification and labels is not None and are_unequal(labels):
            with inspection_mode(result.network):
                outputs = class_logits(network_outputs(result.network, result.samples.inputs))
            unequal = class_scores(outputs.softmax(1), labels)
            scores |= {"balanced_accuracy": unequal.balanced_accuracy, "auc": unequal.auc}
        return {f"{split}_{name}": value for name, value in scores.items()}


def _data_form(samples: Samples) -> str:
    """Describe one sample by its numbers of inputs and targets, which differ between most data sets."""
    targets = samples.targets
    if targets is None:
        return ""
    # of texts the length may differ; images may be passed flat
    inputs = sum(part[0].numel() for part in samples.parts if part.is_floating_point())
    answer = pluralize(targets[0].numel(), "target")
    if samples.is_classification:
        answer = pluralize(int(targets.max()) + 1, "class")
    return f"{pluralize(inputs, 'input')} and {answer}"


@check_arguments
def record_network(
    network: nn.Module,
    data: Any,
    *,
    test: Any = None,
    name: str,
    family: str = "",
    settings: Mapping[str, Any] | None = None,
    measures: Sequence[str] | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    initial_state: Mapping[str, Tensor] | None = None,
    seed: int = 0,
    time_budget: Budget = "auto",
    progress: bool = True,
) -> Record:
    """Score and measure a network that was trained elsewhere, and return its record.

    A gap estimator can be fitted to a pool of a dozen such records or more with test data, and estimates the gap of a
    record without test data.

    Args:
        network: The trained network.
        data: Training data, in any form that `measure` accepts.
        test: Test data; without them the gap is NaN. The readings have a note on those that repeat training samples.
        name: Name of the network; the record's id is a hash of name and `settings`.
        family: Name of the architecture, by default of the class. Gap estimators are valid for the families of the fit.
        settings: Hyperparameters, such as {"learning_rate": 0.1}: columns `hp.*` of the table. Scalars of numpy and
            torch become numbers.
        measures: Names of measures; None for the default ones.
        options: Measure name -> keyword options of that measure; None for their defaults.
        initial_state: State dictionary before training, for measures that need it. None omits these measures.
        seed: Seed of the measures that use noise or probes.
        time_budget: CPU seconds, as for `measure`; use the same for all networks of a pool. "auto" is 60 if no measures
            are named, else no limit.
        progress: Whether to show a bar.

    Raises:
        InvalidInput: The data do not fit the network, or have no targets; or a setting is no number, text or list.

    >>> import torch
    >>> x, y = torch.eye(4), torch.tensor([0, 1, 0, 1])
    >>> record = record_network(nn.Linear(4, 2), (x, y), test=(x, y), name="mine", measures=["parameter_norm"])
    >>> record.gap, record.status, list(record.readings.values())
    (0.0, 'finished', ['parameter_norm'])
    """
    start = time.perf_counter()
    if test is not None:
        _, test = unwrap_estimator(network, test)
    network, data = unwrap_estimator(network, data)
    samples = as_samples(data)
    hyperparameters: dict[str, Any] = as_jsonable("settings", settings or {})
    prepared = ready(network, samples)
    scores = _scores(prepared, "train")
    notes: list[str] = []
    if test is not None:
        held_out = prepared.adapt(test)
        scores |= _scores(held_out, "test")
        notes += [note for note in held_out.samples.notes if note not in prepared.samples.notes]
        if copies := len(exact_copies_in_test(prepared.samples, held_out.samples)):
            notes.append(
                f"{copies:,} of {len(held_out.samples):,} test samples repeat a training sample: the gap is too "
                "small. Remove them."
            )
    readings = measure(
        network,
        samples,
        measures,
        initial_state=initial_state,
        options=options,
        seed=seed,
        time_budget=time_budget,
        progress=progress,
    )
    spec: dict[str, Any] = {
        "name": name,
        "network": {"name": family or type(unwrapped(network)).__name__},
    }
    if (form := _data_form(prepared.samples)) != "":
        spec["data_form"] = form
    if hyperparameters:
        spec["hp"] = hyperparameters
    return Record(
        id=added_id(name, hyperparameters),
        spec=spec,
        status="finished",
        scores=scores,
        readings=Readings(
            readings,
            readings.unmeasured,
            (*readings.notes, *notes),
            interrupted=readings.interrupted,
        ),
        measured_samples=len(samples),
        unmeasured=readings.unmeasured,
        environment=environment(),
        seconds=round(time.perf_counter() - start, 3),
    )
