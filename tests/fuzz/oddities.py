"""Constructs: complex numbers and odd functions."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fuzz.construct import (
    Sizes,
    construct,
    linear,
)
from gradients.reference import Wrapped


@construct("filter of complex weights", "W5", "C6")
def _complex_filter(s: Sizes) -> nn.Module:
    weight = nn.Parameter(torch.randn(s.features // 2 + 1, dtype=torch.complex128).to(_complex()))

    def forward(net: Any, x: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(x) * net.weight, n=s.features)

    return Wrapped(forward, weight=weight)


@construct("complex linear layer", "W5", "C6")
def _complex_linear(s: Sizes) -> nn.Module:
    layer = nn.Linear(s.features, s.features, dtype=_complex())
    return Wrapped(lambda net, x: net.layer(torch.complex(x, x.sin())).real, layer=layer)


def _complex() -> torch.dtype:
    return torch.complex128 if torch.get_default_dtype() == torch.float64 else torch.complex64


class _Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x)
        return x**3 / 3

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return gradient * x**2


@construct("own function without batching rule")
def _own_function(s: Sizes) -> nn.Module:
    return Wrapped(lambda net, x: _Cube.apply(x @ net.weight), weight=nn.Parameter(torch.randn(s.features, s.features)))


@construct("checkpointed")
def _checkpointed(s: Sizes) -> nn.Module:
    return Wrapped(lambda net, x: checkpoint(net.layer, x, use_reentrant=False), layer=linear(s))


@construct("buffer of the size of the batch", "C10")
def _resized_buffer(s: Sizes) -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        net.seen.resize_(len(x)).copy_(x[:, 0, 0].detach())
        return net.layer(x)

    part = Wrapped(forward, layer=linear(s))
    part.register_buffer("seen", torch.zeros(s.n))
    return part


@construct("written in place")
def _in_place(s: Sizes) -> nn.Module:
    return Wrapped(lambda net, x: F.relu(net.layer(x).add_(x).mul_(2), inplace=True), layer=linear(s))


@construct("stopped gradient and data-dependent branch")
def _branch(s: Sizes) -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.layer(x)
        return torch.where(x.detach() > 0, h, h.detach() * x)

    return Wrapped(forward, layer=linear(s))


@construct("partly frozen")
def _partly_frozen(s: Sizes) -> nn.Module:
    layer = nn.Linear(s.features, s.features)
    s.choices.choice([layer.weight, layer.bias]).requires_grad_(False)
    return layer


@construct("low-rank adapter on a frozen layer")
def _adapter(s: Sizes) -> nn.Module:
    base = nn.Linear(s.features, s.features).requires_grad_(False)
    down, up = nn.Linear(s.features, 1, bias=False), nn.Linear(1, s.features, bias=False)
    return Wrapped(lambda net, x: net.base(x) + net.up(net.down(x)), base=base, down=down, up=up)
