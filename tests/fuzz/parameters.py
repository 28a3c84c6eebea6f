"""Constructs: parameters outside calls of their module, shared or complex; hooks, reordered rows, odd functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fuzz.construct import CONSTRUCTS, Construct, Sizes, linear, mixed_over_places
from gradients.reference import Wrapped


def _used_by_weight(net: Any, x: Tensor) -> Tensor:
    return F.linear(x, net.layer.weight, net.layer.bias)


def _transposed_use(net: Any, x: Tensor) -> Tensor:
    return F.linear(net.layer(x).tanh(), net.layer.weight.T)


def _temperature(net: Any, x: Tensor) -> Tensor:
    return (net.scale.exp() * net.layer(x)).softmax(-1)


def _tiny_scale(s: Sizes) -> nn.Module:
    scale = nn.Parameter(torch.full((s.features,), 1e-6))
    return Wrapped(
        lambda net, x: x + net.scale * _transposed_use(net, x),
        layer=nn.Linear(s.features, s.features),
        scale=scale,
    )


def _zero_branch(s: Sizes) -> nn.Module:
    out = nn.Linear(s.features, s.features)
    nn.init.zeros_(out.weight)
    return Wrapped(
        lambda net, x: x + net.out(_transposed_use(net, x)),
        layer=nn.Linear(s.features, s.features),
        out=out,
    )


class _Table(nn.Module):
    def __init__(self, places: int, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(places, features))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight


def _made_weights(net: Any, x: Tensor) -> Tensor:
    return x @ torch.linalg.matrix_exp(0.3 * net.seed) @ net.layer(net.seed)


def _solved(net: Any, x: Tensor) -> Tensor:
    matrix = 3 * torch.eye(x.shape[2], dtype=x.dtype) + net.seed.tanh()
    return torch.linalg.solve(matrix, x.mT).mT


def _hypernetwork(net: Any, x: Tensor) -> Tensor:
    features = x.shape[2]
    return torch.einsum(
        "nte,nef->ntf", x, net.layer(x.mean(1)).unflatten(1, (features, features)).tanh()
    )


def _listed_twice(s: Sizes) -> nn.Module:
    layer = nn.Linear(s.features, s.features)

    def forward(net: Any, x: Tensor) -> Tensor:
        for part in net.layers:
            x = x + F.linear(x, part.weight).tanh()
        return x

    return Wrapped(forward, layers=nn.ModuleList([layer, layer]))


def _shared_encoder(s: Sizes) -> nn.Module:
    encoder = nn.TransformerEncoderLayer(s.features, 1, 3, activation="gelu")

    def forward(net: Any, x: Tensor) -> Tensor:
        h = x.transpose(0, 1)
        return (net.left(h) + net.right(h.tanh())).transpose(0, 1)

    return Wrapped(forward, left=encoder, right=encoder)


def _closing_hook(s: Sizes) -> nn.Module:
    layer, other = nn.Linear(s.features, s.features), nn.Linear(s.features, s.features)

    def scale(module: nn.Module, arguments: Any, output: Any) -> Tensor:
        return output * (1 + other.weight.sum().tanh())

    layer.register_forward_hook(scale)
    return Wrapped(lambda net, x: net.layer(x), layer=layer, other=other)


def _changing_hook(s: Sizes) -> nn.Module:
    layer = nn.Linear(s.features, s.features)
    layer.register_forward_hook(lambda module, arguments, output: output.mul(2) + arguments[0])
    layer.register_forward_pre_hook(lambda module, arguments: (arguments[0].sin(),))
    return layer


def _sorted_rows(net: Any, x: Tensor) -> Tensor:
    order = x[:, 0, 0].detach().argsort()
    return net.layer(mixed_over_places(x[order])).tanh()[order.argsort()]


def _shuffled_features(s: Sizes) -> nn.Module:
    order = list(range(s.features))
    s.choices.shuffle(order)
    return Wrapped(lambda net, x: net.layer(x[..., order]).flip(1), layer=linear(s))


def _experts(net: Any, x: Tensor) -> Tensor:
    mask, result = x[:, 0, 0] > 0, torch.zeros_like(x)
    result[mask] = net.first(x[mask])
    result[~mask] = net.second(x[~mask])
    return result


def _complex() -> torch.dtype:
    return torch.complex128 if torch.get_default_dtype() == torch.float64 else torch.complex64


def _complex_filter(s: Sizes) -> nn.Module:
    weight = nn.Parameter(torch.randn(s.features // 2 + 1, dtype=torch.complex128).to(_complex()))
    return Wrapped(
        lambda net, x: torch.fft.irfft(torch.fft.rfft(x) * net.weight, n=s.features), weight=weight
    )


def _complex_linear(s: Sizes) -> nn.Module:
    layer = nn.Linear(s.features, s.features, dtype=_complex())
    return Wrapped(lambda net, x: net.layer(torch.complex(x, x.sin())).real, layer=layer)


class _Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x)
        return x**3 / 3

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return gradient * x**2


def _resized_buffer(s: Sizes) -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        net.seen.resize_(len(x)).copy_(x[:, 0, 0].detach())
        return net.layer(x)

    part = Wrapped(forward, layer=linear(s))
    part.register_buffer("seen", torch.zeros(s.n))
    return part


def _branch(net: Any, x: Tensor) -> Tensor:
    h = net.layer(x)
    return torch.where(x.detach() > 0, h, h.detach() * x)


def _square(s: Sizes) -> nn.Linear:
    return nn.Linear(s.features, s.features)


def _matrix(s: Sizes) -> nn.Parameter:
    return nn.Parameter(torch.randn(s.features, s.features))


def _around(
    forward: Callable[[Any, Tensor], Tensor], *, half: bool = False, **parts: Callable[[Sizes], Any]
) -> Construct:
    """A forward pass around parts that are made from the sizes."""
    return Construct(
        lambda s: Wrapped(forward, **{name: make(s) for name, make in parts.items()}), half=half
    )


CONSTRUCTS |= {
    "list of parameters": _around(
        lambda net, x: (x @ net.weights[0]).tanh() @ net.weights[1],
        weights=lambda s: nn.ParameterList([_matrix(s), _matrix(s)]),
    ),
    "mapping of parameters": _around(
        lambda net, x: net.entries["scale"] * (x @ net.entries["weight"]),
        entries=lambda s: nn.ParameterDict(
            {"weight": _matrix(s), "scale": nn.Parameter(torch.tensor(1.3))}
        ),
    ),
    "child used by its weight alone": _around(_used_by_weight, layer=_square),
    "vmap in the forward pass": _around(lambda net, x: torch.vmap(net.layer)(x), layer=_square),
    "layer also used by its weight": _around(
        lambda net, x: net.layer(x) + 0.2 * _used_by_weight(net, x), layer=_square, half=True
    ),
    "weight also used transposed": _around(_transposed_use, layer=_square),
    "scalar temperature of a softmax": _around(
        _temperature, layer=linear, scale=lambda s: nn.Parameter(torch.tensor(0.5))
    ),
    "tiny layer scale before a weight used twice": Construct(_tiny_scale),
    "zero-initialized branch before a weight used twice": Construct(_zero_branch),
    "positions returned by a module": _around(
        lambda net, x: x + net.table(x), table=lambda s: _Table(s.places, s.features)
    ),
    "weights made of weights": _around(_made_weights, seed=_matrix, layer=linear),
    "linear system of the weights": _around(_solved, seed=_matrix),
    "weights made of the input": _around(
        _hypernetwork, layer=lambda s: nn.Linear(s.features, s.features**2)
    ),
    "layer listed twice and used by its weight": Construct(_listed_twice),
    "encoder under two names, places first": Construct(_shared_encoder),
    "hook that closes over another module": Construct(_closing_hook),
    "hook that changes the output": Construct(_changing_hook),
    "rows sorted and put back": _around(_sorted_rows, layer=linear),
    "features shuffled": Construct(_shuffled_features, half=True),
    "rows sent to experts": _around(_experts, first=_square, second=_square),
    "filter of complex weights": Construct(_complex_filter),
    "complex linear layer": Construct(_complex_linear),
    "own function without batching rule": _around(
        lambda net, x: _Cube.apply(x @ net.weight), weight=_matrix
    ),
    "checkpointed": _around(
        lambda net, x: checkpoint(net.layer, x, use_reentrant=False), layer=linear
    ),
    "buffer of the size of the batch": Construct(_resized_buffer),
    "written in place": _around(
        lambda net, x: F.relu(net.layer(x).add_(x).mul_(2), inplace=True), layer=linear
    ),
    "stopped gradient and data-dependent branch": _around(_branch, layer=linear),
}
