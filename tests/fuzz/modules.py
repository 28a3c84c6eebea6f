"""Constructs: modules that have no rule, and those that measures must refuse.

Refused are networks in which an output depends on other samples or on chance, or that hide their parameters. The
penalty takes the gradients of the batch as it was run: if no gradient flows from sample to sample (a detached scale, a
mask) they are well defined, else the penalty refuses too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fuzz.construct import (
    CONSTRUCTS,
    Construct,
    Sizes,
    linear,
    norm_layer,
    on_channels,
    random_scales,
    token,
)
from gradients.reference import Wrapped


def _recurrent(s: Sizes) -> nn.Module:
    kind = s.choices.choice([nn.GRU, nn.LSTM, nn.RNN])
    return Wrapped(
        lambda net, x: net.layer(x)[0], layer=kind(s.features, s.features, batch_first=True)
    )


def _recurrent_places_first(s: Sizes) -> nn.Module:
    return Wrapped(
        lambda net, x: net.layer(x.transpose(0, 1))[0].transpose(0, 1),
        layer=nn.GRU(s.features, s.features),
    )


def _recurrent_state(s: Sizes) -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        return net.layer(x, x.new_zeros(net.layer.num_layers, len(x), x.shape[2]))[0]

    return Wrapped(
        forward, layer=nn.GRU(s.features, s.features, s.choices.choice([1, s.n]), batch_first=True)
    )


def _packed(net: Any, x: Tensor) -> Tensor:
    lengths = token(x, x.shape[1])[:, 0] + 1
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    return pad_packed_sequence(net.layer(packed)[0], batch_first=True, total_length=x.shape[1])[0]


def _cell(net: Any, x: Tensor) -> Tensor:
    states = [torch.zeros_like(x[:, 0])]
    for t in range(x.shape[1]):
        states.append(net.cell(x[:, t], states[-1]))
    return torch.stack(states[1:], 1)


class _OwnNorm(nn.Module):
    """A norm of one's own around torch's function, as in nanoGPT."""

    def __init__(
        self, features: int, function: Callable[..., Tensor], *, bias: bool = True
    ) -> None:
        super().__init__()
        self.weight = random_scales(nn.Parameter(torch.ones(features)))
        self.bias = nn.Parameter(torch.zeros(features)) if bias else None
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.weight, self.bias)


class _LayerNormSubclass(nn.LayerNorm):
    """ConvNeXt's: channels last only for the norm."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.mT).mT


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.layer_norm(x, weight.shape, weight, bias, 1e-5)


def _own_instance_norm(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    x = torch.cat([x, x.flip(2) + 1], 1)  # one place has no variance
    return F.instance_norm(x.mT, weight=weight, bias=bias).mT[:, : x.shape[1] // 2]


def _group_norm(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.rms_norm(F.group_norm(x.mT, 1, weight, bias).mT, weight.shape, weight)


def _own_batch_norm(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.batch_norm(
        x.mT, torch.zeros_like(weight), torch.full_like(weight, 2.0), weight, bias
    ).mT


def _parametrized(s: Sizes) -> nn.Module:
    kinds = (
        parametrizations.weight_norm,
        parametrizations.orthogonal,
        parametrizations.spectral_norm,
    )
    return s.choices.choice(kinds)(nn.Linear(s.features, s.features))


def _hooked_weight(s: Sizes) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        kind = s.choices.choice([nn.utils.weight_norm, nn.utils.spectral_norm])
        return kind(nn.Linear(s.features, s.features))


def _constants(s: Sizes) -> nn.Module:
    constant = torch.eye(s.features) + 0.1
    return Wrapped(lambda net, x: net.layer(x) @ constant, layer=linear(s))


def _batch_standardized(net: Any, x: Tensor) -> Tensor:
    h = net.layer(x)
    return (h - h.mean(0)) / (h.std(0) + 1)


def _batch_scaled(net: Any, x: Tensor) -> Tensor:
    h = net.layer(x)
    return h / h.detach().abs().max()


def _around_linear(forward: Callable[[Any, Tensor], Tensor], **traits: bool) -> Construct:
    return Construct(lambda s: Wrapped(forward, layer=linear(s)), **traits)


CONSTRUCTS |= {
    "recurrent layer": Construct(_recurrent),
    "recurrent layer, places first": Construct(_recurrent_places_first),
    "recurrent layers with their first state given": Construct(_recurrent_state),
    "packed sequences": Construct(
        lambda s: Wrapped(_packed, layer=nn.RNN(s.features, s.features, batch_first=True))
    ),
    "recurrent cell in a loop": Construct(
        lambda s: Wrapped(_cell, cell=nn.GRUCell(s.features, s.features))
    ),
    "own layer norm": Construct(
        lambda s: _OwnNorm(s.features, _layer_norm, bias=s.choices.random() < 0.5), half=True
    ),
    "subclass of layer norm": Construct(
        lambda s: Wrapped(on_channels, layer=norm_layer(_LayerNormSubclass(s.features)))
    ),
    "own instance norm": Construct(lambda s: _OwnNorm(s.features, _own_instance_norm)),
    "own group norm and root mean square norm": Construct(
        lambda s: _OwnNorm(s.features, _group_norm)
    ),
    "own parametric ReLU": Construct(
        lambda s: _OwnNorm(
            s.features, lambda x, weight, bias: F.prelu(x.mT, weight - 1).mT, bias=False
        )
    ),
    "batch norm function with given statistics": Construct(
        lambda s: _OwnNorm(s.features, _own_batch_norm)
    ),
    "parametrized weight": Construct(_parametrized),
    "weight norm and spectral norm by hooks": Construct(_hooked_weight),
    "pruned": Construct(
        lambda s: prune.l1_unstructured(nn.Linear(s.features, s.features), "weight", 0.3)
    ),
    "constants that are no buffers": Construct(_constants),
    "dropout that never stops": _around_linear(
        lambda net, x: F.dropout(net.layer(x), 0.5, training=True), refused=True, constant_mix=True
    ),
    "standardized over the batch": _around_linear(_batch_standardized, refused=True),
    "detached scale of the batch": _around_linear(_batch_scaled, refused=True, constant_mix=True),
    "softmax over the batch": _around_linear(lambda net, x: net.layer(x).softmax(0), refused=True),
    "batch norm without statistics": Construct(
        lambda s: Wrapped(
            on_channels, layer=norm_layer(nn.BatchNorm1d(s.features, track_running_stats=False))
        ),
        refused=True,
    ),
}
