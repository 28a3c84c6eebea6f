"""Names in state dictionaries of wrappers, such as compiled, averaged or Lightning modules, and of their networks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from gapscope.base.options import with_prefix

# Buffer of torch.optim.swa_utils.AveragedModel, which its network has not.
COUNT = "n_averaged"


def renamed_state(network: nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state dictionary with the names of a network, if only a prefix differs; else as it was passed.

    The state may be of a wrapper (`module.0.weight`, `model.0.weight`), or the network may be the wrapper; its own
    buffers are then those that it has.

    Args:
        network: The network.
        state: State dictionary of a network, its wrapper or what it wraps.
    """
    current = network.state_dict()
    passed = dict(state)
    shorter = {str(name): tensor for name, tensor in passed.items() if name != COUNT}
    while shorter and not shorter.keys() & current.keys():
        prefixes = _prefixes(shorter)
        parts = [with_prefix(shorter, prefix) for prefix in prefixes]
        fitting = [part for part in parts if part.keys() <= current.keys()]
        if len(fitting) == 1:
            return fitting[0]
        longer = _with_prefix(network, shorter)
        if longer:
            return longer
        if len(prefixes) != 1 or len(parts[0]) < len(shorter):
            return passed
        shorter = parts[0]
    if COUNT in current or not shorter:
        return passed
    return shorter


def _prefixes(names: Iterable[str]) -> list[str]:
    """Return the first parts of names, with their dots."""
    return sorted({f"{name.partition('.')[0]}." for name in names if "." in name})


def _with_prefix(network: nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state with a prefix that makes it that of a wrapper without parameters of its own; empty if none."""
    current = network.state_dict()
    parameters = {name for name, _ in network.named_parameters()}
    fitting: list[dict[str, Any]] = []
    for prefix in _prefixes(current):
        others = {name: t for name, t in current.items() if not name.startswith(prefix)}
        if others.keys() & parameters:
            continue
        longer = {f"{prefix}{name}": tensor for name, tensor in state.items()}
        if longer.keys() <= current.keys():
            fitting.append(others | longer)
    if len(fitting) == 1:
        return fitting[0]
    return {}
