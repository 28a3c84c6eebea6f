"""Exact restoration of a network's state and of random states."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gapscope.base.random_streams import kept_random_states
from gapscope.inspection.interrupts import postponed_interrupts

_CONTAINERS = (dict, OrderedDict, list, set)


@contextmanager
def preserve_rng_state() -> Iterator[None]:
    """Restore the global random states of Python, NumPy and torch after the body."""
    with postponed_interrupts(), kept_random_states():
        yield


class _Attributes:
    """Attributes of one module, with the contents of its containers."""

    def __init__(self, module: nn.Module) -> None:
        self.owner = vars(module)
        self.saved = dict(self.owner)
        self.contents = [
            (value, value.copy()) for value in self.saved.values() if type(value) in _CONTAINERS
        ]

    def restore(self) -> None:
        self.owner.clear()
        self.owner.update(self.saved)
        for container, content in self.contents:
            container.clear()
            container.extend(content) if isinstance(container, list) else container.update(content)


class _Values:
    """Values and storage of one buffer, which a forward pass may have resized."""

    def __init__(self, buffer: Tensor) -> None:
        self.buffer = buffer
        self.copy = buffer.detach().clone()
        self.geometry: tuple[Any, ...] = (buffer.storage_offset(), buffer.size(), buffer.stride())
        self.storage = buffer.untyped_storage()

    def restore(self) -> None:
        if self.buffer.size() != self.geometry[1] or self.buffer.stride() != self.geometry[2]:
            self.storage.resize_(max(self.storage.nbytes(), self.copy.untyped_storage().nbytes()))
            self.buffer.set_(self.storage, *self.geometry)
        # contents are compared, because batch norm updates its statistics without a new version counter
        if not torch.equal(self.buffer, self.copy):
            self.buffer.copy_(self.copy)


def renormalized_weights(network: nn.Module) -> list[Tensor]:
    """Return the weights that a forward pass rescales in place: those of embeddings with `max_norm`."""
    embeddings = (
        module for module in network.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)
    )
    return [module.weight for module in embeddings if module.max_norm is not None]


@contextmanager
def preserve_state(network: nn.Module) -> Iterator[None]:
    """Restore all module attributes, buffer values and random states after the body.

    Values of parameters must not be changed in the body, except by embeddings with `max_norm`.
    """
    # attributes of a script module are in its compiled part
    modules = [
        module for module in network.modules() if not isinstance(module, torch.jit.ScriptModule)
    ]
    attributes = [_Attributes(module) for module in modules]
    values = [_Values(tensor) for tensor in (*network.buffers(), *renormalized_weights(network))]
    with postponed_interrupts():
        try:
            with preserve_rng_state():
                yield
        finally:
            for saved in attributes:
                saved.restore()
            with torch.no_grad():
                for value in values:
                    value.restore()


@contextmanager
def without_weight_hooks(tensors: Iterable[Any]) -> Iterator[None]:
    """Take derivatives by these tensors without the hooks that the user registered at them.

    A hook of a weight, such as a mask of its gradient, changes the training and not the function of the network.
    """
    hooked: list[tuple[Any, Any]] = [
        (tensor, tensor._backward_hooks)
        for tensor in tensors
        if isinstance(tensor, Tensor) and tensor._backward_hooks and tensor.is_leaf
    ]
    try:
        for tensor, _ in hooked:
            tensor._backward_hooks = None
        yield
    finally:
        for tensor, hooks in hooked:
            tensor._backward_hooks = hooks
