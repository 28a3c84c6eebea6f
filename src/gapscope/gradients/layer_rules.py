"""Registry of layer rules, and the recorded call that a rule receives."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from gapscope.base.errors import ReplaceLayer
from gapscope.gradients.contributions import Contribution
from gapscope.inspection.norms import Normalizing, is_as_declared
from gapscope.inspection.substitution import ParameterSubstitution


class NotSeparable(Exception):
    """Exception for calls without separable per-sample rows (a slower strategy is used)."""


def _sample_dim(shape: Sequence[int], n: int) -> int | None:
    """Return the first dimension, of the first two, that has size n (None if there is none)."""
    return list(shape[:2]).index(n) if n in shape[:2] else None


@dataclass(frozen=True)
class Output:
    """Differentiable tensor that a layer returned."""

    edge: GradientEdge  # where derivatives by it are read, also if the tensor is changed in place later
    shape: torch.Size
    index: int  # among all leaves of the returned value


@dataclass(frozen=True)
class Call:
    """One call of a layer in a recorded forward pass."""

    name: str
    module: Any
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    parameters: Mapping[str, nn.Parameter]  # trainable ones, by the name that the rule uses
    outputs: tuple[Output, ...]
    shapes: tuple[torch.Size | None, ...]  # of the arguments, None for those that are no tensors
    # version counters of the tensor arguments at the time of the call
    versions: tuple[tuple[Tensor, int], ...]
    rule: Rule | None  # None for the exact per-sample Jacobian of the layer alone
    n: int  # samples in the batch
    features_last: bool  # whether any leading dimension may hold the samples
    # creates the autocast context in which the pass ran
    autocast: Callable[[], AbstractContextManager[Any]]
    substituted: ParameterSubstitution  # in which the pass ran
    # whether the input is the same for all samples, although a size of it equals their number
    shared: bool = False

    @property
    def sample_dim(self) -> int | None:
        """Dimension of the output that holds the samples (None if there is none)."""
        return None if self.shared else self.apparent_sample_dim

    @property
    def apparent_sample_dim(self) -> int | None:
        """Dimension of the output that holds the samples according to its size (None if there is none).

        The first dimension also counts if it is a multiple of n: then each sample owns consecutive rows. This
        assumption is verified by `gapscope.gradients.verification`.
        """
        shape = self.outputs[0].shape
        if len(shape) < 2:
            return None
        if self.features_last and shape[0] != self.n and len(shape) > 2 and shape[1] == self.n:
            return 1
        return 0 if shape[0] and shape[0] % self.n == 0 else None

    @property
    def argument_dims(self) -> list[int | None]:
        """Dimension of each argument that holds the samples according to its size, for calls without a rule."""
        return [None if shape is None else _sample_dim(shape, self.n) for shape in self.shapes]

    @property
    def output_dims(self) -> list[int | None]:
        """Dimension of each output that holds the samples according to its size, for calls without a rule."""
        return [_sample_dim(out.shape, self.n) for out in self.outputs]

    @property
    def pattern(self) -> Hashable:
        """How the call is read: its name, and the dimensions that hold the samples according to their sizes."""
        if self.rule is not None:
            return self.name, self.apparent_sample_dim
        return self.name, *self.argument_dims, *self.output_dims

    @property
    def owned(self) -> frozenset[int]:
        """The parameters, by identity."""
        return frozenset(id(parameter) for parameter in self.parameters.values())

    @property
    def lacks_batch_dim(self) -> bool:
        """True if the layer has a rule, and its input is the same for all samples."""
        return self.rule is not None and self.sample_dim is None

    def expand_to_batch(self) -> Call:
        """Return the same call with its inputs repeated for every sample."""
        (output, *_) = self.outputs
        argument = [*self.arguments, *self.keywords.values()][0]
        leading = 1 if output.shape[:1] == argument.shape[:1] == (1,) else 0
        inputs = argument.reshape(1, *argument.shape[leading:]).expand(
            self.n, *argument.shape[leading:]
        )
        shape = torch.Size((self.n, *output.shape[leading:]))
        return replace(
            self, arguments=(inputs,), keywords={}, outputs=(replace(output, shape=shape),)
        )

    @property
    def inputs(self) -> Tensor:
        """First argument with samples first, in at least float32."""
        if self.arguments:
            inputs = self.arguments[0]
        else:
            inputs = next(iter(self.keywords.values()))
        return samples_first(
            inputs if torch.is_grad_enabled() else inputs.detach(), self.sample_dim
        )

    def check_unchanged(self) -> None:
        """Raise ReplaceLayer if an input was changed in place after the layer had used it."""
        for tensor, version in self.versions:
            if tensor._version != version:
                raise ReplaceLayer(
                    f"The input of layer '{self.name}' was changed in place after the layer had used it; it must stay "
                    "unchanged until the gradients are computed. Write x = x + y instead of x += y, or inplace=False."
                )


Rule = Callable[[Call, Tensor], list[Contribution]]
_RULES: dict[type[nn.Module], Rule] = {}
_FEATURES_LAST: set[type[nn.Module]] = set()


def samples_first(tensor: Tensor, dim: int | None) -> Tensor:
    """Return the tensor with dimension `dim` first, half precision raised to float32."""
    if tensor.dtype in (torch.float16, torch.bfloat16):
        tensor = tensor.float()
    return tensor.transpose(0, 1) if dim == 1 else tensor


def layer_rule(*layers: type[nn.Module], features_last: bool = False) -> Callable[[Rule], Rule]:
    """Register the decorated function as the rule of exactly these layer types.

    The function takes a `Call` and the derivatives [C, N, ...] of the C outputs by the layer's output, samples first,
    and returns what the call adds to the Jacobian of the layer's own trainable parameters, which must be called
    `weight` and `bias`. Layers without a rule use their exact per-sample Jacobian, which is slower.
    """

    def register(rule: Rule) -> Rule:
        for layer in layers:
            _RULES[layer] = rule
            if features_last:
                _FEATURES_LAST.add(layer)
        return rule

    return register


def rule_of(module: nn.Module, parameters: Mapping[str, nn.Parameter]) -> Rule | None:
    """Return the rule of a layer (None if its parameters are not those of the rule).

    Rules are for real numbers; complex parameters use the exact per-sample Jacobian of the layer.
    """
    applies = set(parameters) <= {"weight", "bias"} and not any(
        p.is_complex() for p in parameters.values()
    )
    if not applies:
        return None
    return _RULES.get(Normalizing if is_as_declared(module) else type(module))


def accepts_leading_dims(module: nn.Module) -> bool:
    """Return whether the rule of a layer was registered with `features_last`."""
    return type(module) in _FEATURES_LAST


def apply_rule(call: Call, gradient: Float[Tensor, "c ..."]) -> list[Contribution]:
    """Return what a call with a rule adds to the Jacobian, one row per sample."""
    assert call.rule is not None
    gradient = samples_first(gradient, None)
    if call.sample_dim == 1:
        gradient = gradient.transpose(1, 2)
    contributions = call.rule(call, gradient)
    rows = gradient.shape[1]
    if rows == call.n:
        return contributions
    return [part.regroup(call.n) for part in contributions]
