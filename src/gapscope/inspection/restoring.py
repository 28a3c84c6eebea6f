"""Put a network back exactly as it was: every parameter, buffer and attribute of every module, and random states."""

from __future__ import annotations

import random
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_CONTAINERS = (dict, OrderedDict, list, set)


@contextmanager
def preserve_rng_state() -> Iterator[None]:
    """Restore the global random states of Python, NumPy and torch (CPU and CUDA) after the body."""
    python_state = random.getstate()
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy else None
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python_state)
        if numpy:
            numpy.random.set_state(numpy_state)


class _Attributes:
    """The attributes of one module, and what its containers hold (parameters, buffers, children, hooks, lists)."""

    def __init__(self, module: nn.Module) -> None:
        self.owner = vars(module)
        self.saved = dict(self.owner)
        self.contents = [(value, value.copy()) for value in self.saved.values() if type(value) in _CONTAINERS]

    def restore(self) -> None:
        self.owner.clear()
        self.owner.update(self.saved)
        for container, content in self.contents:
            container.clear()
            container.extend(content) if isinstance(container, list) else container.update(content)


class _Values:
    """The numbers in one buffer, and where they lay: a forward pass may have resized it."""

    def __init__(self, buffer: Tensor) -> None:
        self.buffer, self.copy = buffer, buffer.detach().clone()
        self.place: tuple[Any, ...] = (buffer.storage_offset(), buffer.size(), buffer.stride())
        self.storage = buffer.untyped_storage()

    def restore(self) -> None:
        if self.buffer.size() != self.place[1] or self.buffer.stride() != self.place[2]:
            self.storage.resize_(max(self.storage.nbytes(), self.copy.untyped_storage().nbytes()))
            self.buffer.set_(self.storage, *self.place)
        # batch norm writes its statistics without raising their version, so that contents are compared
        if not torch.equal(self.buffer, self.copy):
            self.buffer.copy_(self.copy)


@contextmanager
def preserve_state(network: nn.Module) -> Iterator[None]:
    """Put back all attributes of all modules (by identity), the values of all buffers and all random states.

    Parameters are put back by identity; their values must not be changed in the body.

    Args:
        network: The network.

    Yields:
        Nothing.
    """
    # A script module's attributes live in its compiled part.
    modules = [module for module in network.modules() if not isinstance(module, torch.jit.ScriptModule)]
    attributes = [_Attributes(module) for module in modules]
    values = [_Values(buffer) for buffer in network.buffers()]
    try:
        with preserve_rng_state():
            yield
    finally:
        for kept in attributes:
            kept.restore()
        with torch.no_grad():
            for value in values:
                value.restore()
