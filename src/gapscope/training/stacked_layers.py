"""Stacked layers: one operation per layer for many networks, replacing vmap's own rules.

A network is written for one set of weights; `torch.func.vmap` runs it for a stack of them. Its own rule for a
convolution is one with as many groups as networks. On a CPU that pays only with the channels of all networks innermost
("channels last"), where pooling is faster too; these rules keep that layout from layer to layer. Dropout draws each
network's mask from the network's own stream, so that a stack trains with the masks of one after the other.
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
    """Use of a layer's weights by all networks of a stack, as samples of one network."""

    inputs: Tensor  # [N, ...] with N = networks * n, network by network
    outputs: Tensor  # what the layer returned, as it stands in the graph
    layout: Tokens | Windows

    def places(self, gradient: Tensor) -> Tensor:
        """Derivatives by `outputs` as [N, units, places]."""
        if isinstance(self.layout, Tokens):
            return gradient.reshape(len(self.inputs), -1, gradient.shape[-1]).mT
        n, networks = len(gradient), len(self.inputs) // len(gradient)
        by_network = gradient.unflatten(1, (networks, -1)).transpose(0, 1)
        return by_network.reshape(n * networks, by_network.shape[2], -1)


class LayerUses:
    """Uses of layers in one forward pass (an object, since vmap would copy a list)."""

    def __init__(self) -> None:
        self.each: list[LayerUse] = []


Uses = LayerUses | None


def _networks_at(x: Tensor, dim: int | None, place: int, networks: int) -> Tensor:
    """Move the dimension of networks to `place`, repeating a tensor that all share."""
    if dim is None:
        return x.unsqueeze(place).expand(*x.shape[:place], networks, *x.shape[place:])
    return x.movedim(dim, place)


def _as_channels(x: Tensor) -> Tensor:
    """Merge [n, networks, channels, height, width] into images of all channels, channel-major."""
    return x.flatten(1, 2).contiguous(memory_format=torch.channels_last)


class _StackedRule(torch.autograd.Function):
    """Autograd function with a vmap rule. Subclasses define `vmap`.

    A layer that no network's weights or inputs enter is an error: nothing in it can be stacked.
    """

    @staticmethod
    def forward(*inputs: Any) -> Tensor:  # type: ignore[override]
        raise NotImplementedError("a layer without weights or inputs of a network")

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
        weights = _networks_at(weight, dims[1], 0, networks).flatten(0, 1)
        biases = None if bias is None else _networks_at(bias, dims[2], 0, networks).flatten()
        images = _as_channels(_networks_at(x, dims[0], 1, networks))
        weights = weights.contiguous(memory_format=torch.channels_last)
        outputs = torch.conv2d(images, weights, biases, stride, padding, dilation, groups * networks)
        if uses is not None:
            layout = Windows(bias is not None, tuple(weight.shape[-2:]), _pair(stride), _pair(dilation))
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
        rows = rows.reshape(shape[0], -1, shape[-1])
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
            # what torch's own dropout draws: a mask like the input, divided by the share that is kept
            keep = [torch.empty(x.shape[1:], dtype=x.dtype, device=x.device).bernoulli_(1 - p, generator=stream)
                    for stream in streams]  # fmt: skip
            return x * torch.stack(keep).div_(1 - p), 0

    return Dropout


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


class _Signature:
    """Names and defaults of a function's arguments, since autograd functions take no keywords."""

    def __init__(self, *names: str, **defaults: Any) -> None:
        self.defaults = dict.fromkeys(names) | defaults

    def bound(self, given: Sequence[Any], named: dict[str, Any]) -> list[Any]:
        """Arguments in order."""
        values = self.defaults | dict(zip(self.defaults, given, strict=False)) | named
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
    """Context in which vmap over networks takes the rules of this file.

    Dropout masks are drawn from one generator per network (`streams`); `uses` gets every use of a linear or
    convolutional layer if it is to be differentiated.
    """

    def __init__(self, streams: Sequence[torch.Generator], uses: Uses = None) -> None:
        super().__init__()
        self.dropout, self.uses = _dropout(streams), uses

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the rule in place of the function."""
        kwargs = kwargs or {}
        if func is F.dropout:
            x, p, training, _ = _DROPOUT.bound(args, kwargs)
            return self.dropout.apply(x, p) if training and p > 0 else x
        if func not in _RULES:
            return func(*args, **kwargs)
        rule, signature = _RULES[func]
        values = signature.bound(args, kwargs)
        if rule is _MaxPooling:
            *values, with_indices = values
            values[2] = values[2] or values[1]
            if with_indices:
                return func(*args, **kwargs)
        if rule is not _Linear and (values[0].ndim != 4 or values[0].device.type != "cpu") and self.uses is None:
            return func(*args, **kwargs)
        return rule.apply(*values, *([] if rule is _MaxPooling else [self.uses]))
