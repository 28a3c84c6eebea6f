"""State dictionaries from before training, with the names of the network's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput
from gapscope.inspection.state_names import renamed_state


def own_state(
    network: nn.Module, initial_state: Mapping[str, Any], *, whole: bool = False
) -> dict[str, Any]:
    """Return an initial state dictionary with the names of the network's own.

    Args:
        network: The network, without wrappers.
        initial_state: State dictionary before training, perhaps of a wrapper, or of its network.
        whole: Whether every tensor must be there, in its shape.

    Raises:
        InvalidInput: It is no state dictionary, holds a name that the network has not, or no tensor, or is not whole.
    """
    if not isinstance(initial_state, Mapping):
        raise InvalidInput(
            f"initial_state must be a state dictionary; got {type(initial_state).__name__}. Pass a clone of "
            "network.state_dict() from before training."
        )
    current = network.state_dict()
    state = renamed_state(network, initial_state)
    tensors = {name: value for name, value in current.items() if isinstance(value, Tensor)}
    misfits: list[Any] = [
        name
        for name, tensor in tensors.items()
        if whole and (name not in state or state[name].shape != tensor.shape)
    ]
    misfits += [name for name in state if name not in current]
    if misfits:
        raise InvalidInput(
            f"initial_state must hold the tensors of the network's state_dict(); {', '.join(map(str, misfits[:4]))} "
            "differ. Pass the state dictionary of the same network before training."
        )
    for name, tensor in state.items():
        if name in tensors and not isinstance(tensor, Tensor):
            raise InvalidInput(
                f"initial_state must hold tensors; {name} is of type {type(tensor).__name__}. Pass a clone of "
                "network.state_dict() from before training."
            )
    return state


def matching_state(network: nn.Module, initial_state: Mapping[str, Any]) -> dict[str, Any]:
    """Return an initial state dictionary with the names of the network's own, whole and finite.

    Args:
        network: The network, without wrappers.
        initial_state: State dictionary before training, in any form of `own_state`.

    Raises:
        InvalidInput: A tensor is missing, has another shape, is of another network, or is not finite.
    """
    state = own_state(network, initial_state, whole=True)
    for name, tensor in state.items():
        is_number = isinstance(tensor, Tensor) and tensor.is_floating_point()
        if is_number and not bool(tensor.isfinite().all()):
            raise InvalidInput(
                f"initial_state must be finite; {name} holds NaN or infinity. Pass the state dictionary from before "
                "training."
            )
    return state


def equals_trained_weights(network: nn.Module, initial_state: Mapping[str, Any]) -> bool:
    """Return whether an initial state dictionary, with the network's names, equals the current weights."""
    pairs = [
        (initial_state.get(name), parameter)
        for name, parameter in network.named_parameters()
        if parameter.requires_grad
    ]
    return bool(pairs) and all(
        isinstance(tensor, Tensor)
        and tensor.shape == parameter.shape
        and torch.equal(tensor.detach().to(parameter.device, parameter.dtype), parameter.detach())
        for tensor, parameter in pairs
    )
