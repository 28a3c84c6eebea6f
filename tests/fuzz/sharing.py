"""Constructs: modules under several names, shared weights, hooks, rows in another order."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fuzz.construct import (
    Sizes,
    construct,
    linear,
    mixed_over_places,
    plain,
)
from gradients.reference import Wrapped


@construct("layer called twice", half=True)
def _called_twice(s: Sizes) -> nn.Module:
    return Wrapped(lambda net, x: net.layer(net.layer(x).tanh()), layer=nn.Linear(s.features, s.features))


@construct("two layers with one weight", half=True)
def _tied(s: Sizes) -> nn.Module:
    first, second = nn.Linear(s.features, s.features), nn.Linear(s.features, s.features, bias=False)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second)


@construct("alias of a layer that is also used by its weight", "W1")
def _alias(s: Sizes) -> nn.Module:
    layer = nn.Linear(s.features, s.features)
    body = nn.Sequential(layer, nn.Tanh())
    return Wrapped(lambda net, x: F.linear(net.body(x), net.first.weight), body=body, first=layer)


@construct("layer listed twice and used by its weight", "W1", "C2")
def _listed_twice(s: Sizes) -> nn.Module:
    layer = nn.Linear(s.features, s.features)

    def forward(net: Any, x: Tensor) -> Tensor:
        for part in net.layers:
            x = x + F.linear(x, part.weight).tanh()
        return x

    return Wrapped(forward, layers=nn.ModuleList([layer, layer]))


@construct("encoder under two names, places first", "W1", "W3")
def _shared_encoder(s: Sizes) -> nn.Module:
    encoder = nn.TransformerEncoderLayer(s.features, 1, 3, activation="gelu")

    def forward(net: Any, x: Tensor) -> Tensor:
        h = x.transpose(0, 1)
        return (net.left(h) + net.right(h.tanh())).transpose(0, 1)

    return Wrapped(forward, left=encoder, right=encoder)


@construct("forward pass that closes over its module", "W6")
def _patched(s: Sizes) -> nn.Module:
    layer = nn.Linear(s.features, s.features)
    layer.forward = lambda input: F.linear(input, layer.weight.tanh(), layer.bias)
    return nn.Sequential(layer)


@construct("hook that closes over another module", "W6")
def _closing_hook(s: Sizes) -> nn.Module:
    layer, other = nn.Linear(s.features, s.features), nn.Linear(s.features, s.features)

    def scaled(module: nn.Module, arguments: Any, output: Any) -> Tensor:
        return output * (1 + other.weight.sum().tanh())

    layer.register_forward_hook(scaled)
    return Wrapped(plain, layer=layer, other=other)


@construct("hook that changes the output")
def _changing_hook(s: Sizes) -> nn.Module:
    layer = nn.Linear(s.features, s.features)
    layer.register_forward_hook(lambda module, arguments, output: output.mul(2) + arguments[0])
    layer.register_forward_pre_hook(lambda module, arguments: (arguments[0].sin(),))
    return layer


@construct("rows sorted and put back", "W4")
def _sorted_rows(s: Sizes) -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        order = x[:, 0, 0].detach().argsort()
        return net.layer(mixed_over_places(x[order])).tanh()[order.argsort()]

    return Wrapped(forward, layer=linear(s))


@construct("features shuffled", half=True)
def _shuffled_features(s: Sizes) -> nn.Module:
    order = list(range(s.features))
    s.choices.shuffle(order)
    return Wrapped(lambda net, x: net.layer(x[..., order]).flip(1), layer=linear(s))


@construct("rows sent to experts")
def _experts(s: Sizes) -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        chosen, result = x[:, 0, 0] > 0, torch.zeros_like(x)
        for expert, mask in ((net.first, chosen), (net.second, ~chosen)):
            result[mask] = expert(x[mask])
        return result

    return Wrapped(forward, first=nn.Linear(s.features, s.features), second=nn.Linear(s.features, s.features))
