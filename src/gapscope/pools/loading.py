"""Networks that a pool wrote: read back with the data they were trained on, and measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from gapscope.base.errors import UnreadableFile
from gapscope.base.files import to_json
from gapscope.base.specs import RunSpec
from gapscope.data import Problem
from gapscope.pools.from_spec import network_from_spec, prepared
from gapscope.pools.readings import RunOptions, measure_record
from gapscope.results.records import Record
from gapscope.training.checkpoints import load_tensors, set_weights


def _read_weights(weights: Path, data_root: str | None) -> tuple[RunSpec, dict[str, Tensor], Problem, dict[str, Any]]:
    """Spec and weights of a stored network with the data it was trained on."""
    tensors, facts = load_tensors(weights)
    if "spec" not in facts:
        raise UnreadableFile(
            f"{weights} must carry the spec of its network; it holds weights alone. Pass weights that a pool wrote."
        )
    spec = RunSpec.from_dict(facts["spec"])
    problem, corruption = prepared(spec, data_root)
    if json.loads(to_json(corruption)) != facts.get("corruption"):
        raise UnreadableFile(
            f"The data must be those that {weights} was trained on; their subset or corruption is another now. "
            "Use the data root and the version of gapscope that it was trained with."
        )
    return spec, tensors, problem, corruption


def load_network(weights: Path, data_root: str | None = None) -> tuple[nn.Module, Problem]:
    """Return a stored network with the data it was trained on.

    Returns:
        The network on the CPU, and its problem with the training data as they were corrupted.
    """
    network, _, problem = load_with_initial(weights, data_root)
    return network, problem


def load_with_initial(weights: Path, data_root: str | None = None) -> tuple[nn.Module, dict[str, Tensor], Problem]:
    """As `load_network`, with the weights before training, which the spec draws again.

    Returns:
        The network, its state dictionary before training, and its problem.
    """
    spec, tensors, problem, _ = _read_weights(weights, data_root)
    network = network_from_spec(spec, problem)
    initial = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
    set_weights(network, tensors, str(weights))
    return network, initial, problem


def measure_stored_network(weights: Path, options: RunOptions, record: Record | None = None) -> Record:
    """Measure a network with stored weights on its training data, writing nothing.

    Args:
        record: A record to complete by the measures that it lacks; None starts one without scores.
    """
    spec, tensors, problem, corruption = _read_weights(weights, options.data_root)
    network = network_from_spec(spec, problem).to(options.device)
    initial = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
    set_weights(network, tensors, str(weights))
    record = record or Record(id=spec.id, spec=spec.to_dict(), status="finished", corruption=corruption)
    return measure_record(record, network, initial, problem, options)
