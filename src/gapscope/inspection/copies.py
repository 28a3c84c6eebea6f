"""Copies of networks on any device."""

from __future__ import annotations

import copy
from collections import Counter
from typing import TypeVar

import torch
from torch import Tensor, nn

Module = TypeVar("Module", bound=nn.Module)


def _clone(tensor: Tensor) -> Tensor:
    values = tensor.detach().clone()
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(values, requires_grad=tensor.requires_grad)
    return values.requires_grad_(tensor.requires_grad)


def copy_network(network: Module) -> Module:
    """Return a deep copy of a module, whose parameters and buffers are cloned without their gradients.

    `copy.deepcopy` copies the storage of a buffer, which devices outside of torch cannot. Tensors that share storage,
    and those of other classes, are left to it.
    """
    plain = {
        id(tensor): tensor
        for tensor in (*network.parameters(), *network.buffers())
        if type(tensor) in (Tensor, nn.Parameter) and tensor.is_leaf and tensor.layout == torch.strided
    }
    uses = Counter(tensor.untyped_storage()._cdata for tensor in plain.values() if not tensor.is_meta)
    with torch.inference_mode(False):
        memo = {
            key: _clone(tensor)
            for key, tensor in plain.items()
            if not tensor.is_meta and uses[tensor.untyped_storage()._cdata] == 1
        }
        return copy.deepcopy(network, memo)
