"""Constructs: parameters used outside calls of their module."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fuzz.construct import (
    Sizes,
    construct,
    linear,
)
from gradients.reference import Wrapped


@construct("list of parameters", "C2")
def _parameter_list(s: Sizes) -> nn.Module:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList([nn.Parameter(torch.randn(s.features, s.features)) for _ in range(2)])

        def forward(self, x: Tensor) -> Tensor:
            return (x @ self.weights[0]).tanh() @ self.weights[1]

    return Part()


@construct("mapping of parameters", "C1", "C2")
def _parameter_dict(s: Sizes) -> nn.Module:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            made = {
                "weight": nn.Parameter(torch.randn(s.features, s.features)),
                "scale": nn.Parameter(torch.tensor(1.3)),
            }
            self.entries = nn.ParameterDict(made)

        def forward(self, x: Tensor) -> Tensor:
            return self.entries["scale"] * (x @ self.entries["weight"])

    return Part()


@construct("child used by its weight alone", "C2")
def _functional_child(s: Sizes) -> nn.Module:
    return Wrapped(
        lambda net, x: F.linear(x, net.layer.weight, net.layer.bias), layer=nn.Linear(s.features, s.features)
    )


@construct("vmap in the forward pass", "C2")
def _vmapped(s: Sizes) -> nn.Module:
    return Wrapped(lambda net, x: torch.vmap(net.layer)(x), layer=nn.Linear(s.features, s.features))


@construct("layer also used by its weight", "W8", half=True)
def _used_twice(s: Sizes) -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        return net.layer(x) + 0.2 * F.linear(x, net.layer.weight, net.layer.bias)

    return Wrapped(forward, layer=nn.Linear(s.features, s.features))


@construct("weight also used transposed")
def _transposed_use(s: Sizes) -> nn.Module:
    return Wrapped(
        lambda net, x: F.linear(net.layer(x).tanh(), net.layer.weight.T), layer=nn.Linear(s.features, s.features)
    )


@construct("scalar scale", "C1")
def _scalar_scale(s: Sizes) -> nn.Module:
    return Wrapped(lambda net, x: x + net.scale * net.layer(x), layer=linear(s), scale=nn.Parameter(torch.tensor(0.3)))


@construct("scalar temperature of a softmax", "C1")
def _temperature(s: Sizes) -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        return (net.scale.exp() * net.layer(x)).softmax(-1)

    return Wrapped(forward, layer=linear(s), scale=nn.Parameter(torch.tensor(0.5)))


@construct("vector scale", half=True)
def _vector_scale(s: Sizes) -> nn.Module:
    return Wrapped(lambda net, x: x + net.scale * net.layer(x), layer=linear(s), scale=nn.Parameter(torch.rand(1)))


@construct("tiny layer scale before a weight used twice", "W2")
def _tiny_scale(s: Sizes) -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        return x + net.scale * F.linear(net.layer(x).tanh(), net.layer.weight.T)

    scale = nn.Parameter(torch.full((s.features,), 1e-6))
    return Wrapped(forward, layer=nn.Linear(s.features, s.features), scale=scale)


@construct("zero-initialized branch before a weight used twice", "W2")
def _zero_branch(s: Sizes) -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        return x + net.out(F.linear(net.layer(x).tanh(), net.layer.weight.T))

    out = nn.Linear(s.features, s.features)
    nn.init.zeros_(out.weight)
    return Wrapped(forward, layer=nn.Linear(s.features, s.features), out=out)


@construct("learned positions")
def _positions(s: Sizes) -> nn.Module:
    table = nn.Parameter(torch.randn(s.places, s.features))
    return Wrapped(lambda net, x: net.layer(x + net.table), layer=linear(s), table=table)


class _Table(nn.Module):
    def __init__(self, places: int, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(places, features))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight


@construct("positions returned by a module", "C3")
def _positions_module(s: Sizes) -> nn.Module:
    return Wrapped(lambda net, x: x + net.table(x), table=_Table(s.places, s.features))


@construct("weights made of weights")
def _made_weights(s: Sizes) -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        return x @ torch.linalg.matrix_exp(0.3 * net.seed) @ net.layer(net.seed)

    seed = nn.Parameter(torch.randn(s.features, s.features))
    return Wrapped(forward, layer=linear(s), seed=seed)


@construct("linear system of the weights")
def _solved(s: Sizes) -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        matrix = 3 * torch.eye(s.features, dtype=x.dtype) + net.seed.tanh()
        return torch.linalg.solve(matrix, x.mT).mT

    return Wrapped(forward, seed=nn.Parameter(torch.randn(s.features, s.features)))


@construct("weights made of the input")
def _hypernetwork(s: Sizes) -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        return torch.einsum("nte,nef->ntf", x, net.layer(x.mean(1)).unflatten(1, (s.features, s.features)).tanh())

    return Wrapped(forward, layer=nn.Linear(s.features, s.features**2))
