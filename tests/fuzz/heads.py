"""Read-outs: [n, places, features] to [n, outputs]."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fuzz.construct import (
    Sizes,
    head,
)
from gradients.reference import Wrapped


@head("mean of the places", half=True)
def _mean_head(s: Sizes) -> nn.Module:
    return Wrapped(lambda net, x: net.layer(x.mean(1)), layer=nn.Linear(s.features, s.outputs))


@head("all places", half=True)
def _flat_head(s: Sizes) -> nn.Module:
    layer = nn.Linear(s.places * s.features, s.outputs, bias=s.choices.random() < 0.5)
    return Wrapped(lambda net, x: net.layer(x.flatten(1)), layer=layer)


@head("cosines with a scalar scale", "C1")
def _cosine_head(s: Sizes) -> nn.Module:
    # One cosine more than outputs: a single one is a sign, whose zero derivative is all rounding.
    def forward(net: Any, x: Tensor) -> Tensor:
        return net.scale.exp() * F.normalize(net.layer(x.mean(1) + 0.1))[:, : s.outputs]

    return Wrapped(forward, layer=nn.Linear(s.features, s.outputs + 1), scale=nn.Parameter(torch.tensor(0.4)))


@head("weight by hand")
def _hand_head(s: Sizes) -> nn.Module:
    weight = nn.Parameter(torch.randn(s.features, s.outputs))
    return Wrapped(lambda net, x: x.mean(1) @ net.weight, weight=weight)


@head("no parameters", "C2")
def _no_parameters(s: Sizes) -> nn.Module:
    return Wrapped(lambda net, x: x.mean(1).repeat(1, s.outputs)[:, : s.outputs])


@head("zero-initialised")
def _zero_head(s: Sizes) -> nn.Module:
    layer = nn.Linear(s.features, s.outputs)
    nn.init.zeros_(layer.weight)
    return Wrapped(lambda net, x: net.layer(x[:, -1]), layer=layer)


@head("constant outputs", "C8")
def _constant_head(s: Sizes) -> nn.Module:
    bias = nn.Parameter(torch.rand(s.outputs))
    return Wrapped(lambda net, x: (net.bias * 2).expand(len(x), s.outputs) * 1.0, bias=bias)
