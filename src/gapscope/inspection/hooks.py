"""Modules of a network: by name, by kind, and in the order in which one forward pass calls them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, NotMeasurable, nearest

Weighted = nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear

ACTIVATIONS = frozenset({
    "relu", "relu6", "leakyrelu", "prelu", "elu", "selu", "celu", "gelu", "silu", "swish", "mish", "softplus",
    "hardswish", "hardtanh", "tanh", "sigmoid", "hardsigmoid",
})  # fmt: skip


def kind(name: str) -> str:
    """Return the name of a class or function in one spelling: `nn.LeakyReLU` and `F.leaky_relu_` are one kind.

    >>> kind("LeakyReLU") == kind("leaky_relu_") == "leakyrelu"
    True
    """
    return name.lower().replace("_", "")


@dataclass(frozen=True)
class Call:
    """One call of a module that has no children, or is a convolution or linear layer, in one forward pass."""

    name: str
    module: nn.Module
    input: Any
    output: Any


def module_named(network: nn.Module, name: str) -> nn.Module:
    """Return the module of a network called `name`.

    Args:
        network: The network.
        name: Name as in `network.named_modules()`.

    Returns:
        The module.

    Raises:
        InvalidInput: There is none of this name; the nearest is named.
    """
    known = dict(network.named_modules())
    if name not in known or not name:
        names = [key for key in known if key]
        raise InvalidInput(
            f"layer must name a module of the network, as network.named_modules() lists them; got {name!r}."
            f"{nearest(name, names)}"
        )
    return known[name]


def calls(network: nn.Module, x: Tensor) -> list[Call]:
    """Return the calls of the network's innermost modules in one forward pass, in their order.

    Args:
        network: The network, in the mode in which it is looked at.
        x: Inputs; one sample is enough.

    Returns:
        One entry a call.
    """
    made: list[Call] = []

    def record(name: str) -> Any:
        return lambda module, args, output: made.append(Call(name, module, args[0] if args else None, output))

    handles = [
        module.register_forward_hook(record(name))
        for name, module in network.named_modules()
        if isinstance(module, Weighted) or next(module.children(), None) is None
    ]
    try:
        with torch.no_grad():
            network(x)
    finally:
        for handle in handles:
            handle.remove()
    return made


@contextmanager
def tapped(modules: dict[str, nn.Module], *, replacement: Tensor | None = None) -> Iterator[dict[str, Tensor]]:
    """Watch the outputs of modules during the one forward pass that runs in the body.

    What follows a watched module gets a copy of its output, so that an in-place activation behind it does not overwrite
    what was seen.

    Args:
        modules: The modules by the names under which their outputs are kept.
        replacement: What follows gets this instead of the outputs, where given.

    Yields:
        The outputs by name, filled by the pass.

    Raises:
        NotMeasurable: A module is called twice in one pass, or its output is not one tensor.
    """
    seen: dict[str, Tensor] = {}

    def hook(name: str) -> Any:
        def keep(module: nn.Module, args: Any, output: Any) -> Tensor:
            if name in seen:
                raise NotMeasurable(
                    f"Layer '{name}' must be called once in a forward pass; it is called again. "
                    "Name a module around it that is called once, or give each call a module of its own."
                )
            if not isinstance(output, Tensor):
                raise NotMeasurable(
                    f"Layer '{name}' must return one tensor; got {type(output).__name__}. Name another layer."
                )
            seen[name] = output
            return output.clone() if replacement is None else replacement

        return keep

    handles = [module.register_forward_hook(hook(name)) for name, module in modules.items()]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
