"""Partial forward passes: replay cached outputs up to one layer, compute the rest.

This needs no trace of the network. Only the code of modules around the layer runs again, between calls of other
modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from gapscope.inspection.hooks import patch_forwards

Call = tuple[nn.Module, Any]
"""A module, and the output of one call of it."""


@contextmanager
def record_calls_before(network: nn.Module, layer: nn.Module) -> Iterator[list[Call]]:
    """Record the outermost module calls that end before that of a layer in a forward pass.

    These are the calls by the code around the layer, which are repeated when this code runs again; calls within them
    are not. Their outputs are copied, because later code may change them in place.

    `layer` is a module that is called once. The list is filled by the forward pass that the caller runs inside the
    `with` block.
    """
    earlier: list[Call] = []
    # for every call that has not ended, the calls that ended directly within it; the first is for code around the
    # network
    within: list[list[Call]] = [[]]

    def recorded(module: nn.Module) -> Callable[..., Any]:
        forward = module.forward

        @wraps(forward)
        def call(*arguments: Any, **named: Any) -> Any:
            within.append([])
            try:
                output = forward(*arguments, **named)
            finally:
                within.pop()
            if module is layer:
                earlier.extend(entry for entries in within for entry in entries)
            else:
                within[-1].append((module, tree_map_only(Tensor, Tensor.clone, output)))
            return output

        return call

    modules = [
        module for module in network.modules() if not isinstance(module, torch.jit.ScriptModule)
    ]
    with patch_forwards({module: recorded(module) for module in modules}):
        yield earlier


def replay_forwards(calls: Sequence[Call]) -> dict[nn.Module, Callable[..., Any]]:
    """Return functions for `patch_forwards` that replay recorded outputs, then compute."""
    returned: dict[nn.Module, list[Any]] = {}
    for module, output in calls:
        returned.setdefault(module, []).append(output)

    def function(module: nn.Module) -> Callable[..., Any]:
        forward = module.forward
        outputs = iter(returned[module])

        @wraps(forward)
        def call(*arguments: Any, **named: Any) -> Any:
            for output in outputs:
                return output
            return forward(*arguments, **named)

        return call

    return {module: function(module) for module in returned}


class ReadRecorder(TorchDispatchMode):
    """Recorder of the tensors that operations read (not those only passed on)."""

    def __init__(self) -> None:
        super().__init__()
        self._storages: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record the tensors that an operation reads."""
        self._storages |= {
            _storage(item) for item in tree_leaves((args, kwargs)) if isinstance(item, Tensor)
        }
        return func(*args, **(kwargs or {}))

    def __contains__(self, tensor: Tensor) -> bool:
        return _storage(tensor) in self._storages


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
