"""Constructs: parameters outside calls of their module, shared or complex; hooks, reordered rows, odd functions."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fuzz.construct import Sizes, construct, linear, mixed_over_places, plain
from gradients.reference import Wrapped


@construct("list of parameters")
def _parameter_list(s: Sizes) -> nn.Module:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList([nn.Parameter(torch.randn(s.features, s.features)) for _ in range(2)])

        def forward(self, x: Tensor) -> Tensor:
            return (x @ self.weights[0]).tanh() @ self.weights[1]

    return Part()


@construct("mapping of parameters")
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


@construct("child used by its weight alone")
def _functional_child(s: Sizes) -> nn.Module:
    return Wrapped(
        lambda net, x: F.linear(x, net.layer.weight, net.layer.bias), layer=nn.Linear(s.features, s.features)
    )


@construct("vmap in the forward pass")
def _vmapped(s: Sizes) -> nn.Module:
    return Wrapped(lambda net, x: torch.vmap(net.layer)(x), layer=nn.Linear(s.features, s.features))


@construct("layer also used by its weight", half=True)
def _used_twice(s: Sizes) -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        return net.layer(x) + 0.2 * F.linear(x, net.layer.weight, net.layer.bias)

    return Wrapped(forward, layer=nn.Linear(s.features, s.features))


@construct("weight also used transposed")
def _transposed_use(s: Sizes) -> nn.Module:
    return Wrapped(
        lambda net, x: F.linear(net.layer(x).tanh(), net.layer.weight.T), layer=nn.Linear(s.features, s.features)
    )


@construct("scalar temperature of a softmax")
def _temperature(s: Sizes) -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        return (net.scale.exp() * net.layer(x)).softmax(-1)

    return Wrapped(forward, layer=linear(s), scale=nn.Parameter(torch.tensor(0.5)))


@construct("tiny layer scale before a weight used twice")
def _tiny_scale(s: Sizes) -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        return x + net.scale * F.linear(net.layer(x).tanh(), net.layer.weight.T)

    scale = nn.Parameter(torch.full((s.features,), 1e-6))
    return Wrapped(forward, layer=nn.Linear(s.features, s.features), scale=scale)


@construct("zero-initialized branch before a weight used twice")
def _zero_branch(s: Sizes) -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        return x + net.out(F.linear(net.layer(x).tanh(), net.layer.weight.T))

    out = nn.Linear(s.features, s.features)
    nn.init.zeros_(out.weight)
    return Wrapped(forward, layer=nn.Linear(s.features, s.features), out=out)


class _Table(nn.Module):
    def __init__(self, places: int, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(places, features))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight


@construct("positions returned by a module")
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


@construct("layer listed twice and used by its weight")
def _listed_twice(s: Sizes) -> nn.Module:
    layer = nn.Linear(s.features, s.features)

    def forward(net: Any, x: Tensor) -> Tensor:
        for part in net.layers:
            x = x + F.linear(x, part.weight).tanh()
        return x

    return Wrapped(forward, layers=nn.ModuleList([layer, layer]))


@construct("encoder under two names, places first")
def _shared_encoder(s: Sizes) -> nn.Module:
    encoder = nn.TransformerEncoderLayer(s.features, 1, 3, activation="gelu")

    def forward(net: Any, x: Tensor) -> Tensor:
        h = x.transpose(0, 1)
        return (net.left(h) + net.right(h.tanh())).transpose(0, 1)

    return Wrapped(forward, left=encoder, right=encoder)


@construct("hook that closes over another module")
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


@construct("rows sorted and put back")
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


@construct("filter of complex weights")
def _complex_filter(s: Sizes) -> nn.Module:
    weight = nn.Parameter(torch.randn(s.features // 2 + 1, dtype=torch.complex128).to(_complex()))

    def forward(net: Any, x: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(x) * net.weight, n=s.features)

    return Wrapped(forward, weight=weight)


@construct("complex linear layer")
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


@construct("buffer of the size of the batch")
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
