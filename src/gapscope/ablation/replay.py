"""A forward pass run again from one layer on: what modules returned before it is handed back, not computed.

This needs no trace of the network. Only what the code of modules around the layer does between calls of other modules
is done again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

Call = tuple[nn.Module, Any]
"""A module, and what one call of it returned."""


@contextmanager
def patch_forwards(functions: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Let modules call these functions in place of their own `forward` while the body runs; their hooks stay."""
    with ExitStack() as stack:
        for module, function in functions.items():
            stack.callback(_put_back, module, vars(module).get("forward"))
            module.forward = function
        yield


def _put_back(module: nn.Module, own: Any) -> None:
    if own is None:
        del module.forward
    else:
        module.forward = own


@contextmanager
def passed_calls(network: nn.Module, layer: nn.Module) -> Iterator[list[Call]]:
    """Watch one forward pass: which calls ended before that of a layer, where none of them is within another.

    They are the calls that the code around the layer makes before it: those are made again when this code runs again,
    while all that happened within them is not. What they returned is copied, for what follows may change it in place.

    Args:
        network: The network.
        layer: A module of it that is called once.

    Yields:
        The calls in their order, filled by the pass that runs in the body.
    """
    found: list[Call] = []
    # for every call that continues, the calls that ended directly within it; the first is what surrounds the network
    within: list[list[Call]] = [[]]

    def watched(module: nn.Module) -> Callable[..., Any]:
        forward = module.forward

        @wraps(forward)
        def call(*arguments: Any, **named: Any) -> Any:
            within.append([])
            try:
                output = forward(*arguments, **named)
            finally:
                within.pop()
            if module is layer:
                found.extend(ended for calls in within for ended in calls)
            else:
                within[-1].append((module, tree_map_only(Tensor, Tensor.clone, output)))
            return output

        return call

    modules = [module for module in network.modules() if not isinstance(module, torch.jit.ScriptModule)]
    with patch_forwards({module: watched(module) for module in modules}):
        yield found


def replay_forwards(calls: Sequence[Call]) -> dict[nn.Module, Callable[..., Any]]:
    """Return, for `forwards`, functions that hand back what the calls returned; what comes after them is computed."""
    returned: dict[nn.Module, list[Any]] = {}
    for module, output in calls:
        returned.setdefault(module, []).append(output)

    def function(module: nn.Module) -> Callable[..., Any]:
        forward, outputs = module.forward, iter(returned[module])

        @wraps(forward)
        def call(*arguments: Any, **named: Any) -> Any:
            for output in outputs:
                return output
            return forward(*arguments, **named)

        return call

    return {module: function(module) for module in returned}


class ReadRecorder(TorchDispatchMode):
    """Notes which tensors any operation takes while it is on; one that is only handed on is not read."""

    def __init__(self) -> None:
        super().__init__()
        self._storages: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note the tensors that an operation takes."""
        self._storages |= {_storage(item) for item in tree_leaves((args, kwargs)) if isinstance(item, Tensor)}
        return func(*args, **(kwargs or {}))

    def __contains__(self, tensor: Tensor) -> bool:
        return _storage(tensor) in self._storages


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
