"""Networks with every kind of layer, and the per-sample Jacobian by plain autograd, one output at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from gapscope.gradients.backward import differentiable_kernels
from gapscope.gradients.traces import per_sample_traces


def trainable(network: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in network.parameters() if parameter.requires_grad]


def gradient_of(value: Tensor, network: nn.Module, *, create_graph: bool = False) -> Tensor:
    """All derivatives of a number in one row, complex ones as two real numbers."""
    parameters = trainable(network)
    if not value.requires_grad:
        return torch.zeros(
            sum(p.numel() * (2 if p.is_complex() else 1) for p in parameters), dtype=value.dtype
        )
    gradients = torch.autograd.grad(
        value, parameters, retain_graph=True, create_graph=create_graph, materialize_grads=True
    )
    dense = [gradient.to_dense() if gradient.is_sparse else gradient for gradient in gradients]
    return torch.cat(
        [(torch.stack([g.real, g.imag]) if g.is_complex() else g).flatten() for g in dense]
    )


def dense_jacobian(network: nn.Module, x: Tensor, *, create_graph: bool = False) -> Tensor:
    """[N, C, P], from batches of one."""
    with differentiable_kernels(network.modules()):
        rows = [
            torch.stack(
                [
                    gradient_of(output, network, create_graph=create_graph)
                    for output in network(sample)[0]
                ]
            )
            for sample in x.split(1)
        ]
    return torch.stack(rows)


def check_traces(network: nn.Module, x: Tensor, rtol: float = 1e-10) -> None:
    """Compare the squared norms of per-sample gradients with those of the dense Jacobian."""
    expected = dense_jacobian(network, x).square().sum((1, 2)).double()
    torch.testing.assert_close(
        per_sample_traces(network, x, None, chunk_size=64)[0], expected, rtol=rtol, atol=0
    )


class Wrapped(nn.Module):
    """A network made of modules and a function of (modules, x)."""

    def __init__(self, function: Callable[..., Any], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def headed(*layers: nn.Module, features: int, outputs: int = 3) -> nn.Module:
    return nn.Sequential(*layers, nn.Tanh(), nn.Flatten(), nn.Linear(features, outputs))


class VisionTransformer(nn.Module):
    """Class token and position embedding as bare parameters, packed projections, scaled_dot_product_attention."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 8, 2, stride=2)
        self.class_token = nn.Parameter(torch.randn(1, 1, 8))
        self.positions = nn.Parameter(torch.randn(1, 5, 8))
        self.norm = nn.LayerNorm(8)
        self.packed = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.rand(8))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.class_token.expand(len(x), -1, -1), tokens], 1) + self.positions
        q, k, v = self.packed(self.norm(h)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.head((h + self.scale * self.out(mixed))[:, 0])


def _tied_language_model() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.table(x) + net.positions(torch.arange(x.shape[1], device=x.device))
        return net.head(torch.tanh(net.mix(h)).mean(1))

    table = nn.Embedding(7, 4)
    head = nn.Linear(4, 7, bias=False)
    head.weight = table.weight
    return Wrapped(
        forward, table=table, positions=nn.Embedding(6, 4), mix=nn.Linear(4, 4), head=head
    )


def _attention(*, batch_first: bool, cross: bool, masked: bool) -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        x = x if batch_first else x.transpose(0, 1)
        keys = net.keys(x) if cross else x
        masks = {}
        if masked:
            padding = torch.zeros(
                x.shape[0 if batch_first else 1], 6, dtype=torch.bool, device=x.device
            )
            padding[:, 5] = True
            masks = {"attn_mask": padding.new_ones(6, 6).triu(1), "key_padding_mask": padding}
        h, _ = net.attention(x, keys, keys if cross else x, need_weights=not masked, **masks)
        h = h if batch_first else h.transpose(0, 1)
        return net.head(h.flatten(1))

    attention = nn.MultiheadAttention(8, 2, batch_first=batch_first)
    return Wrapped(forward, attention=attention, keys=nn.Linear(8, 8), head=nn.Linear(48, 3))


def _frozen(network: nn.Module, *names: str) -> nn.Module:
    for name in names:
        network.get_parameter(name).requires_grad_(False)
    return network


def _encoder(*trainable_parts: str) -> nn.Module:
    """A transformer whose encoder may take its fused kernels in evaluation mode, frozen but for some parts."""
    layer = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True)
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(name.startswith(trainable_parts))
    return headed(layer, nn.Linear(4, 4), features=12)


def _with_statistics(network: nn.Module) -> nn.Module:
    for module in network.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name == "running_mean":
                buffer.normal_()
            elif name == "running_var":
                buffer.uniform_(0.5, 2)
    for parameter in network.parameters():
        if parameter.ndim == 1:
            nn.init.uniform_(parameter, 0.5, 1.5)
    return network


def _twice(net: Any, x: Tensor) -> Tensor:
    return net.head(torch.tanh(net.layer(torch.tanh(net.layer(x)))).flatten(1))


def _tied_linear() -> nn.Module:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), nn.Linear(4, 3))


def _tied_convolutions() -> nn.Module:
    encoder, decoder = nn.Conv2d(2, 4, 3), nn.ConvTranspose2d(4, 2, 3)
    decoder.weight = encoder.weight
    return nn.Sequential(encoder, nn.Tanh(), decoder, nn.Flatten(), nn.Linear(50, 3))


def _recurrent(kind: Callable[..., nn.Module]) -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        return net.head(net.rnn(x)[0][:, -1])

    return Wrapped(forward, rnn=kind(3, 4, batch_first=True), head=nn.Linear(4, 2))


def _outside(net: Any, x: Tensor) -> Tensor:
    return net.head(torch.tanh(F.linear(torch.tanh(net.first(x)), net.first.weight.t())))


class OwnLayerNorm(nn.Module):
    """As in nanoGPT: the functional form, with a weight of its own."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight)


def _doubly_named() -> nn.Module:
    """A layer under two names, whose weight is also used outside its call."""
    layer = nn.Linear(4, 4)
    return Wrapped(
        lambda net, x: net.head(F.linear(net.body(x), net.first.weight)),
        body=nn.Sequential(layer, nn.Tanh()),
        first=layer,
        head=nn.Linear(4, 2),
    )


def _patched() -> nn.Module:
    """A forward pass put on a layer, which holds that very layer."""
    layer: Any = nn.Linear(5, 3)
    layer.forward = lambda h: F.linear(h, layer.weight.tanh(), layer.bias)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), layer)


def _sorted_inside(net: Any, x: Tensor) -> Tensor:
    order = x[:, 0].argsort()
    return net.head(torch.cat([torch.tanh(net.layer(x[order]))[order.argsort()], x], 1))


@dataclass(frozen=True)
class Case:
    """A network in float64 evaluation mode and the shape of its inputs (without the samples)."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    tokens: int = 0

    def make(self, n: int = 4, seed: int = 0) -> tuple[nn.Module, Tensor]:
        torch.manual_seed(seed)
        network = _with_statistics(self.build()).double().eval()
        if self.tokens:
            return network, torch.randint(self.tokens, (n, *self.shape))
        return network, torch.randn(n, *self.shape, dtype=torch.float64)


CASES: dict[str, Case] = {
    "linear": Case(lambda: headed(nn.Linear(4, 5), features=5), (4,)),
    "linear without bias": Case(
        lambda: nn.Sequential(nn.Linear(4, 5, bias=False), nn.Tanh(), nn.Linear(5, 2)), (4,)
    ),
    "linear on tokens": Case(lambda: headed(nn.Linear(4, 5), features=30), (2, 3, 4)),
    "linear on many tokens": Case(lambda: headed(nn.Linear(2, 2), features=80), (40, 2)),
    "conv1d": Case(
        lambda: headed(nn.Conv1d(2, 3, 3, stride=2, padding=1, dilation=2), features=9), (2, 7)
    ),
    "conv2d": Case(
        lambda: headed(nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 0)), features=36),
        (2, 5, 5),
    ),
    "conv2d no bias": Case(lambda: headed(nn.Conv2d(2, 3, 3, bias=False), features=27), (2, 5, 5)),
    "conv2d 1x1": Case(lambda: headed(nn.Conv2d(2, 9, 1), features=81), (2, 3, 3)),
    "conv2d whole image": Case(lambda: headed(nn.Conv2d(2, 3, 4), features=3), (2, 4, 4)),
    "conv2d same even": Case(
        lambda: headed(nn.Conv2d(2, 3, 4, padding="same", dilation=2), features=48), (2, 4, 4)
    ),
    "conv2d circular": Case(
        lambda: headed(nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), features=48),
        (2, 4, 4),
    ),
    "conv2d reflect": Case(
        lambda: headed(nn.Conv2d(2, 3, 3, padding=(2, 1), padding_mode="reflect"), features=72),
        (2, 4, 4),
    ),
    "conv2d groups": Case(
        lambda: headed(nn.Conv2d(4, 6, 3, groups=2, dilation=2), features=24), (4, 6, 6)
    ),
    "conv2d depthwise": Case(
        lambda: headed(nn.Conv2d(3, 6, 3, groups=3, padding=1), features=96), (3, 4, 4)
    ),
    "conv3d": Case(
        lambda: headed(nn.Conv3d(2, 3, (2, 3, 2), stride=(1, 2, 1), padding=1), features=54),
        (2, 2, 4, 2),
    ),
    "conv stack": Case(
        lambda: nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            headed(nn.Conv2d(3, 4, 3), features=16),
        ),
        (1, 8, 8),
    ),
    "conv_transpose1d": Case(
        lambda: headed(nn.ConvTranspose1d(2, 3, 3, stride=2), features=27), (2, 4)
    ),
    "conv_transpose2d": Case(
        lambda: headed(
            nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1, output_padding=1, dilation=2),
            features=3 * 100,
        ),
        (2, 4, 4),
    ),
    "conv_transpose2d groups": Case(
        lambda: headed(nn.ConvTranspose2d(4, 6, 2, groups=2), features=96), (4, 3, 3)
    ),
    "batch_norm1d": Case(lambda: headed(nn.Linear(4, 5), nn.BatchNorm1d(5), features=5), (4,)),
    "batch_norm2d": Case(
        lambda: headed(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), features=27), (1, 5, 5)
    ),
    "batch_norm3d": Case(lambda: headed(nn.BatchNorm3d(2), features=16), (2, 2, 2, 2)),
    "instance_norm": Case(
        lambda: headed(nn.InstanceNorm2d(2, affine=True), features=32), (2, 4, 4)
    ),
    "instance_norm running": Case(
        lambda: headed(nn.InstanceNorm1d(2, affine=True, track_running_stats=True), features=10),
        (2, 5),
    ),
    "layer_norm": Case(lambda: headed(nn.Linear(4, 4), nn.LayerNorm([3, 4]), features=12), (3, 4)),
    "group_norm": Case(lambda: headed(nn.Conv1d(2, 4, 2), nn.GroupNorm(2, 4), features=16), (2, 5)),
    "rms_norm": Case(lambda: headed(nn.Linear(4, 4), nn.RMSNorm(4), features=12), (3, 4)),
    "prelu": Case(lambda: headed(nn.Linear(4, 5), nn.PReLU(), features=5), (4,)),
    "prelu channels": Case(lambda: headed(nn.Conv1d(2, 4, 2), nn.PReLU(4), features=16), (2, 5)),
    "embedding": Case(
        lambda: headed(nn.Embedding(6, 4, padding_idx=0), nn.Linear(4, 3), features=15),
        (5,),
        tokens=6,
    ),
    "tied language model": Case(_tied_language_model, (5,), tokens=7),
    "attention": Case(lambda: _attention(batch_first=True, cross=False, masked=False), (6, 8)),
    "attention places first": Case(
        lambda: _attention(batch_first=False, cross=False, masked=True), (6, 8)
    ),
    "cross attention": Case(lambda: _attention(batch_first=True, cross=True, masked=True), (6, 8)),
    "attention with extra keys": Case(
        lambda: Wrapped(
            lambda net, x: net.head(net.attention(x, x, x)[0].flatten(1)),
            attention=nn.MultiheadAttention(
                4, 2, batch_first=True, add_bias_kv=True, add_zero_attn=True
            ),
            head=nn.Linear(12, 2),
        ),
        (3, 4),
    ),
    "transformer encoder": Case(
        lambda: headed(
            nn.TransformerEncoder(
                nn.TransformerEncoderLayer(4, 2, 6, batch_first=True, activation="gelu"),
                2,
                enable_nested_tensor=False,
            ),
            features=12,
        ),
        (3, 4),
    ),
    "frozen transformer encoder": Case(lambda: _encoder("none"), (3, 4)),
    "transformer encoder with trainable norm": Case(lambda: _encoder("norm1"), (3, 4)),
    "transformer encoder with trainable attention": Case(
        lambda: _encoder("self_attn.in_proj"), (3, 4)
    ),
    "as many places as samples": Case(
        lambda: Wrapped(
            lambda net, x: net.head(torch.tanh(net.layer(x.transpose(0, 1))).mean(0)),
            layer=nn.Linear(4, 4),
            head=nn.Linear(4, 3),
        ),
        (4, 4),
    ),
    "vision transformer": Case(VisionTransformer, (1, 4, 4)),
    "called twice": Case(
        lambda: Wrapped(_twice, layer=nn.Linear(4, 4), head=nn.Linear(4, 3)), (4,)
    ),
    "tied linear": Case(_tied_linear, (4,)),
    "tied convolutions": Case(_tied_convolutions, (2, 5, 5)),
    "samples and frames merged": Case(
        lambda: Wrapped(
            lambda net, x: net.head(
                torch.tanh(net.layer(x.flatten(0, 1))).unflatten(0, (-1, 3)).flatten(1)
            ),
            layer=nn.Conv1d(2, 2, 2),
            head=nn.Linear(18, 3),
        ),
        (3, 2, 4),
    ),
    "frames before samples": Case(
        lambda: Wrapped(
            lambda net, x: net.head(
                torch.tanh(net.layer(x.transpose(0, 1).flatten(0, 1)))
                .unflatten(0, (3, -1))
                .transpose(0, 1)
                .flatten(1)
            ),
            layer=nn.Conv1d(2, 2, 2),
            head=nn.Linear(18, 3),
        ),
        (3, 2, 4),
    ),
    "used outside its module": Case(
        lambda: Wrapped(_outside, first=nn.Linear(4, 5), head=nn.Linear(4, 3)), (4,)
    ),
    "weight norm": Case(lambda: headed(weight_norm(nn.Linear(4, 5)), features=5), (4,)),
    "lstm": Case(lambda: _recurrent(nn.LSTM), (3, 3)),
    "frozen weight": Case(lambda: _frozen(headed(nn.Linear(4, 5), features=5), "0.weight"), (4,)),
    "frozen conv weight": Case(
        lambda: _frozen(headed(nn.Conv1d(2, 3, 2), features=9), "0.weight"), (2, 4)
    ),
    "frozen bias": Case(lambda: _frozen(headed(nn.Conv1d(2, 3, 2), features=9), "0.bias"), (2, 4)),
    "unused parameter": Case(
        lambda: Wrapped(
            lambda net, x: net.head(torch.tanh(net.layer(x))),
            layer=nn.Linear(4, 4),
            head=nn.Linear(4, 3),
            unused=nn.Linear(2, 2),
        ),
        (4,),
    ),
    "layer norm of one's own": Case(
        lambda: nn.Sequential(nn.Linear(4, 6), OwnLayerNorm(6), nn.Tanh(), nn.Linear(6, 2)), (4,)
    ),
    "one layer under two names": Case(_doubly_named, (4,)),
    "patched forward": Case(_patched, (4,)),
    "samples sorted inside": Case(
        lambda: Wrapped(_sorted_inside, layer=nn.Linear(4, 4), head=nn.Linear(8, 2)), (4,)
    ),
}
