"""Stacked layers: one operation per layer for many networks, in place of vmap's own rules.

`torch.func.vmap` runs a network, written for one set of weights, for a stack of them. A stacked convolution is a
grouped one, with the layer's groups once per network. On a CPU it is faster only if the channels of all networks are
innermost ("channels last"), where pooling is faster too; these rules keep that layout from layer to layer. Dropout
samples the mask of each network from that network's stream, as in training one by one.

In a `vmap` rule, `dims` holds the dimension over networks of each argument, or None if all networks share it. A rule
returns its result and the dimension over networks in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gapscope.gradients.layouts import Tokens, Windows

Dims = tuple[int | None, ...]


@dataclass(frozen=True)
class LayerUse:
    """Call of a layer by all networks of a stack."""

    inputs: Tensor  # [N, ...] with N = networks * n samples, network by network
    outputs: Tensor  # node of the graph, to differentiate by
    layout: Tokens | Windows

    def at_positions(self, gradient: Tensor) -> Tensor:
        """Return derivatives by `outputs` as [N, units, positions]."""
        if isinstance(self.layout, Tokens):
            # [networks, n * positions, units], network by network
            return gradient.reshape(len(self.inputs), -1, gradient.shape[-1]).mT
        # [n, networks * units, height, width], sample by sample
        n, networks = len(gradient), len(self.inputs) // len(gradient)
        by_network = gradient.unflatten(1, (networks, -1)).transpose(0, 1)
        return by_network.reshape(n * networks, by_network.shape[2], -1)


class LayerUses:
    """Uses of layers in one forward pass (a class, because vmap would copy a list)."""

    def __init__(self) -> None:
        self.each: list[LayerUse] = []


Uses = LayerUses | None


def _networks_at(x: Tensor, dim: int | None, target: int, networks: int) -> Tensor:
    """Move the dimension over networks to `target`, and expand a tensor that all share."""
    if dim is None:
        return x.unsqueeze(target).expand(*x.shape[:target], networks, *x.shape[target:])
    return x.movedim(dim, target)


def _as_channels(x: Tensor) -> Tensor:
    """Merge [n, networks, channels, height, width] into images with all channels."""
    return x.flatten(1, 2).contiguous(memory_format=torch.channels_last)


class _StackedRule(torch.autograd.Function):
    """Autograd function that runs by its `vmap` rule only: some argument must be stacked."""

    @staticmethod
    def forward(*inputs: Any) -> Tensor:  # type: ignore[override]
        raise NotImplementedError("a layer with neither stacked weights nor stacked inputs")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass


class _Convolution(_StackedRule):
    @staticmethod
    def vmap(  # type: ignore[override]
        info: Any, dims: Dims, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any,
        dilation: Any, groups: int, uses: Uses,
    ) -> tuple[Tensor, int]:  # fmt: skip
        networks = info.batch_size
        # [networks * units, ...]: the groups of network i convolve its channels
        weights = _networks_at(weight, dims[1], 0, networks).flatten(0, 1)
        biases = None if bias is None else _networks_at(bias, dims[2], 0, networks).flatten()
        images = _as_channels(_networks_at(x, dims[0], 1, networks))
        weights = weights.contiguous(memory_format=torch.channels_last)
        outputs = torch.conv2d(images, weights, biases, stride, padding, dilation, groups * networks)
        if uses is not None:
            layout = Windows(bias is not None, tuple(weight.shape[-2:]), _pair(stride), _pair(dilation))
            # [n, networks * channels, ...] to [networks * n, channels, ...]
            (height, width), inputs = _pair(padding), images.unflatten(1, (networks, -1)).transpose(0, 1).flatten(0, 1)
            uses.each.append(LayerUse(F.pad(inputs, (width, width, height, height)), outputs, layout))
        return outputs.unflatten(1, (networks, -1)), 1


class _MaxPooling(_StackedRule):
    @staticmethod
    def vmap(info: Any, dims: Dims, x: Tensor, *settings: Any) -> tuple[Tensor, int]:  # type: ignore[override]
        images = _as_channels(_networks_at(x, dims[0], 1, info.batch_size))
        return torch.max_pool2d(images, *settings).unflatten(1, (info.batch_size, -1)), 1


class _Linear(_StackedRule):
    @staticmethod
    def vmap(  # type: ignore[override]
        info: Any, dims: Dims, x: Tensor, weight: Tensor, bias: Tensor | None, uses: Uses
    ) -> tuple[Tensor, int]:
        rows, weights = (_networks_at(t, dim, 0, info.batch_size) for t, dim in ((x, dims[0]), (weight, dims[1])))
        shape = rows.shape
        rows = rows.reshape(shape[0], -1, shape[-1])  # [networks, n * positions, inputs]
        if bias is None:
            outputs = torch.bmm(rows, weights.mT)
        else:
            outputs = torch.baddbmm(_networks_at(bias, dims[2], 0, info.batch_size)[:, None], rows, weights.mT)
        if uses is not None:
            uses.each.append(LayerUse(rows.reshape(shape[0] * shape[1], *shape[2:]), outputs, Tokens(bias is not None)))
        return outputs.view(*shape[:-1], -1), 0


def _dropout(streams: Sequence[torch.Generator]) -> type[_StackedRule]:
    class Dropout(_StackedRule):
        @staticmethod
        def vmap(info: Any, dims: Dims, x: Tensor, p: float) -> tuple[Tensor, int]:  # type: ignore[override]
            x = _networks_at(x, dims[0], 0, info.batch_size)
            # as torch's dropout: a mask of the input's shape and type, divided by 1 - p
            masks = [torch.empty(x.shape[1:], dtype=x.dtype, device=x.device).bernoulli_(1 - p, generator=stream)
                     for stream in streams]  # fmt: skip
            return x * torch.stack(masks).div_(1 - p), 0

    return Dropout


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


class _Signature:
    """Names and defaults of a function's arguments (autograd functions accept no keywords)."""

    def __init__(self, *names: str, **defaults: Any) -> None:
        self.defaults = dict.fromkeys(names) | defaults

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """Return all arguments in order."""
        values = self.defaults | dict(zip(self.defaults, args, strict=False)) | kwargs
        return [values[name] for name in self.defaults]


_CONVOLUTION = _Signature("input", "weight", "bias", stride=1, padding=0, dilation=1, groups=1)
_POOLING = _Signature("input", "kernel_size", "stride", padding=0, dilation=1, ceil_mode=False, return_indices=False)
_LINEAR = _Signature("input", "weight", "bias")
_DROPOUT = _Signature("input", p=0.5, training=True, inplace=False)

_RULES: dict[Any, tuple[type[_StackedRule], _Signature]] = {
    F.linear: (_Linear, _LINEAR),
    torch.conv2d: (_Convolution, _CONVOLUTION),
    F.max_pool2d: (_MaxPooling, _POOLING),
    torch.max_pool2d: (_MaxPooling, _POOLING),
}


class StackedLayers(TorchFunctionMode):
    """Context in which vmap over networks uses the rules of this file.

    Dropout masks are sampled from one generator per network (`streams`). Every use of a linear or convolutional layer
    is added to `uses`, if it is not None.
    """

    def __init__(self, streams: Sequence[torch.Generator], uses: Uses = None) -> None:
        super().__init__()
        self.dropout, self.uses = _dropout(streams), uses

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the rule in place of the function, if there is one for these arguments."""
        kwargs = kwargs or {}
        if func is F.dropout:
            x, p, training, _ = _DROPOUT.bind(args, kwargs)
            return self.dropout.apply(x, p) if training and p > 0 else x
        if func not in _RULES:
            return func(*args, **kwargs)
        rule, signature = _RULES[func]
        values = signature.bind(args, kwargs)
        if rule is _MaxPooling:
            *values, return_indices = values
            values[2] = values[2] or values[1]  # the stride is the kernel size by default
            if return_indices:
                return func(*args, **kwargs)
        # channels last is faster on the CPU only; elsewhere vmap's rule is used unless layer uses are recorded
        if rule is not _Linear and (values[0].ndim != 4 or values[0].device.type != "cpu") and self.uses is None:
            return func(*args, **kwargs)
        return rule.apply(*values, *([] if rule is _MaxPooling else [self.uses]))
