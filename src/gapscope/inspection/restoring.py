"""Exact restoration of a network's state and of random states."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
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


def _restorer_of_attributes(module: nn.Module) -> Callable[[], None]:
    """Return a function that restores the attributes of one module, with the contents of its containers."""
    owner = vars(module)
    saved = dict(owner)
    contents = [(value, value.copy()) for value in saved.values() if type(value) in _CONTAINERS]

    def restore() -> None:
        owner.clear()
        owner.update(saved)
        for container, content in contents:
            container.clear()
            container.extend(content) if isinstance(container, list) else container.update(content)

    return restore


def _restorer_of_values(buffer: Tensor) -> Callable[[], None]:
    """Return a function that restores values and storage of one buffer, which a forward pass may have resized."""
    copy = buffer.detach().clone()
    geometry: tuple[Any, ...] = (buffer.storage_offset(), buffer.size(), buffer.stride())
    storage = buffer.untyped_storage()

    def restore() -> None:
        if (buffer.size(), buffer.stride()) != geometry[1:]:
            storage.resize_(max(storage.nbytes(), copy.untyped_storage().nbytes()))
            buffer.set_(storage, *geometry)
        # contents are compared, because batch norm updates its statistics without a new version counter
        if not torch.equal(buffer, copy):
            buffer.copy_(copy)

    return restore


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
    modules = (
        module for module in network.modules() if not isinstance(module, torch.jit.ScriptModule)
    )
    restorers = [
        *map(_restorer_of_attributes, modules),
        *map(_restorer_of_values, (*network.buffers(), *renormalized_weights(network))),
    ]
    with postponed_interrupts():
        try:
            with preserve_rng_state():
                yield
        finally:
            with torch.no_grad():
                for restore in restorers:
                    restore()


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
