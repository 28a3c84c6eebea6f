"""Copies of networks on any device."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from gapscope.inspection.execution import exclusive

Module = TypeVar("Module", bound=nn.Module)


def _clone(tensor: Tensor) -> Tensor:
    values = tensor.detach().clone()
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(values, requires_grad=tensor.requires_grad)
    return values.requires_grad_(tensor.requires_grad)


def _clones(network: nn.Module) -> dict[int, Any]:
    """Return clones of the parameters and buffers by identity, as `copy.deepcopy` takes them."""
    plain = [
        tensor
        for tensor in (*network.parameters(), *network.buffers())
        if type(tensor) in (Tensor, nn.Parameter)
        if tensor.is_leaf and tensor.layout == torch.strided and not tensor.is_meta
    ]
    # torch copies no results of operations, such as a weight that weight norm computed in the last pass
    computed = [
        value
        for module in network.modules()
        for value in vars(module).values()
        if isinstance(value, Tensor) and not value.is_leaf
    ]
    uses = Counter(tensor.untyped_storage()._cdata for tensor in plain)
    clones = {
        id(tensor): _clone(tensor) for tensor in plain if uses[tensor.untyped_storage()._cdata] == 1
    }
    return clones | {id(tensor): tensor.detach().clone() for tensor in computed}


def copy_network(network: Module) -> Module:
    """Return a deep copy of a module, whose parameters and buffers are cloned without their gradients.

    `copy.deepcopy` copies the storage of a buffer, which devices outside of torch cannot. Tensors that share storage,
    and those of other classes, are left to it.
    """
    # another thread may have put other tensors into the network
    with exclusive(), torch.inference_mode(False):
        return copy.deepcopy(network, _clones(network))
