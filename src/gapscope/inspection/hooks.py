"""Modules of a network by name and kind, and hooks that record their calls and outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, NotMeasurable, did_you_mean
from gapscope.inspection.memoization import tensor_version
from gapscope.inspection.outputs import eager_mode

Weighted = nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear
"""Linear and convolutional layers."""

ACTIVATIONS = frozenset(
    {
        "relu",
        "relu6",
        "leakyrelu",
        "prelu",
        "elu",
        "selu",
        "celu",
        "gelu",
        "silu",
        "swish",
        "mish",
        "softplus",
        "hardswish",
        "hardtanh",
        "tanh",
        "sigmoid",
        "hardsigmoid",
    }
)


def kind(name: str) -> str:
    """Normalize the name of a class or function (`nn.LeakyReLU` and `F.leaky_relu_` agree).

    >>> kind("LeakyReLU") == kind("leaky_relu_") == "leakyrelu"
    True
    """
    return name.lower().replace("_", "")


def named_modules(network: nn.Module) -> dict[str, nn.Module]:
    """Return the modules under the user's names, also if the network was adapted for measures."""
    return dict(getattr(network, "adapted_from", network).named_modules())


def module_named(network: nn.Module, name: str) -> nn.Module:
    """Return the module called `name`, or raise InvalidInput with the nearest name."""
    known = named_modules(network)
    if name not in known or not name:
        names = [key for key in known if key]
        raise InvalidInput(
            f"layer must name a module of the network, as network.named_modules() lists them; got {name!r}."
            f"{did_you_mean(name, names)}"
        )
    return known[name]


@contextmanager
def forward_hooks(
    modules: Mapping[str, nn.Module], hook: Callable[..., Any], *, before: bool = False
) -> Iterator[None]:
    """Call `hook(name, module, inputs[, output])` at every call of the modules in the body.

    Inputs that are passed by keyword follow the others. Its return value, unless None, replaces the output, or with
    `before` the inputs. A hook that keeps tensors needs copies, because the network may change them in place:
    `copied_calls` and `capture_outputs` make them.
    """

    def call(name: str, module: nn.Module, inputs: Any, keywords: Any, *output: Any) -> Any:
        value = hook(name, module, (*inputs, *keywords.values()), *output)
        if not before or value is None:
            return value
        return value[: len(inputs)], dict(zip(keywords, value[len(inputs) :], strict=True))

    with ExitStack() as stack:
        # compiled code of torch.compile runs no hooks
        stack.enter_context(eager_mode())
        for name, module in modules.items():
            if before:
                register = module.register_forward_pre_hook
            else:
                register = module.register_forward_hook
            stack.callback(register(partial(call, name), with_kwargs=True).remove)
        yield


@contextmanager
def patch_forwards(functions: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Replace the `forward` of modules in the body (hooks stay)."""
    with ExitStack() as stack:
        for module, function in functions.items():
            stack.callback(_restore, module, vars(module).get("forward"))
            module.forward = function
        yield


def _restore(module: nn.Module, forward: Any) -> None:
    if forward is None:
        del module.forward
    else:
        module.forward = forward


def _passed(value: Any) -> tuple[Any, int]:
    """Return a value as the network passed it on, with its version."""
    return value, tensor_version(value) if isinstance(value, Tensor) else 0


@dataclass(frozen=True)
class ModuleCall:
    """One call of a module in a forward pass.

    Attributes:
        name: Name of the module.
        module: The module.
        input: Its first input, a copy if it is a tensor.
        output: Its output, a copy if it is a tensor; None in a hook before the call.
        passed: Input and output of the network itself, which may have changed since, each with its version.
    """

    name: str
    module: nn.Module
    input: Any
    output: Any
    passed: tuple[tuple[Any, int], tuple[Any, int]]

    def follows(self, other: ModuleCall) -> bool:
        """Return whether the input is the output of another call, which nothing has changed in place.

        Args:
            other: An earlier call of the same pass.
        """
        mine, version = self.passed[0]
        theirs, version_of_theirs = other.passed[1]
        return mine is theirs and version == version_of_theirs


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def unchanged(value: Any) -> Any:
    """Return the value."""
    return value


@contextmanager
def copied_calls(
    modules: Mapping[str, nn.Module],
    *,
    before: bool = False,
    select: Callable[[Any], Any] = unchanged,
) -> Iterator[list[ModuleCall]]:
    """Record the calls of modules in the body, with copies that later operations in place do not reach.

    Args:
        modules: Modules by name.
        before: Whether to record only inputs, before each call.
        select: Function that returns the tensor of interest in an input or output.
    """
    calls: list[ModuleCall] = []

    def record(name: str, module: nn.Module, inputs: tuple[Any, ...], output: Any = None) -> None:
        values = [select(inputs[0]) if inputs else None, select(output)]
        first, second = map(_copy, values)
        calls.append(
            ModuleCall(name, module, first, second, (_passed(values[0]), _passed(values[1])))
        )

    with forward_hooks(modules, record, before=before):
        yield calls


def record_module_calls(network: nn.Module, x: Tensor) -> list[ModuleCall]:
    """Return the calls of the network's layers and modules without children in one forward pass, in order."""
    innermost = {
        name: module
        for name, module in named_modules(network).items()
        if isinstance(module, Weighted) or next(module.children(), None) is None
    }
    with copied_calls(innermost) as calls, torch.no_grad():
        network(x)
    return calls


def weighted_calls(network: nn.Module, x: Tensor) -> list[ModuleCall]:
    """Return the calls of linear and convolutional layers in one forward pass, in order."""
    return [call for call in record_module_calls(network, x) if isinstance(call.module, Weighted)]


@contextmanager
def capture_outputs(
    modules: dict[str, nn.Module], *, replacement: Tensor | None = None
) -> Iterator[dict[str, Tensor]]:
    """Capture the outputs of modules during one forward pass (yields them by name).

    The network continues with a copy of each output (safe against in-place activations), or with `replacement`.

    Raises:
        NotMeasurable: A module is called twice in one pass, or its output is not one tensor.
    """
    outputs: dict[str, Tensor] = {}

    def capture(name: str, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Tensor:
        if name in outputs:
            raise NotMeasurable(
                f"Layer '{name}' must be called once in a forward pass; it is called again. "
                "Name a module around it that is called once, or use a separate module per call."
            )
        if not isinstance(output, Tensor):
            raise NotMeasurable(
                f"Layer '{name}' must return one tensor; got {type(output).__name__}. Name another layer."
            )
        outputs[name] = output
        if replacement is None:
            return output.clone()
        return replacement

    with forward_hooks(modules, capture):
        yield outputs
