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
from torch.utils.checkpoint import checkpoint

from fuzz.construct import Sizes, construct, linear, norm_layer, odd, on_channels, token
from gradients.reference import Wrapped


@construct("recurrent layer", half=False)
def _recurrent(s: Sizes) -> nn.Module:
    kind = s.choices.choice([nn.GRU, nn.LSTM, nn.RNN])
    return Wrapped(lambda net, x: net.layer(x)[0], layer=kind(s.features, s.features, batch_first=True))


@construct("recurrent layer, places first")
def _recurrent_places_first(s: Sizes) -> nn.Module:
    return Wrapped(lambda net, x: net.layer(x.transpose(0, 1))[0].transpose(0, 1), layer=nn.GRU(s.features, s.features))


@construct("recurrent layers with their first state given")
def _recurrent_state(s: Sizes) -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        return net.layer(x, x.new_zeros(net.layer.num_layers, len(x), x.shape[2]))[0]

    return Wrapped(forward, layer=nn.GRU(s.features, s.features, s.choices.choice([1, s.n]), batch_first=True))


@construct("packed sequences")
def _packed(s: Sizes) -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        lengths = token(x, x.shape[1])[:, 0] + 1
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(net.layer(packed)[0], batch_first=True, total_length=x.shape[1])[0]

    return Wrapped(forward, layer=nn.RNN(s.features, s.features, batch_first=True))


@construct("recurrent cell in a loop")
def _cell(s: Sizes) -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        h, seen = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            h = net.cell(x[:, t], h)
            seen.append(h)
        return torch.stack(seen, 1)

    return Wrapped(forward, cell=nn.GRUCell(s.features, s.features))


class _OwnNorm(nn.Module):
    """A norm of one's own around torch's function, as in nanoGPT."""

    def __init__(self, features: int, function: Callable[..., Tensor], *, bias: bool) -> None:
        super().__init__()
        self.weight = odd(nn.Parameter(torch.ones(features)))
        self.bias = nn.Parameter(torch.zeros(features)) if bias else None
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.weight, self.bias)


@construct("own layer norm", half=True)
def _own_layer_norm(s: Sizes) -> nn.Module:
    def norm(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.layer_norm(x, weight.shape, weight, bias, 1e-5)

    return _OwnNorm(s.features, norm, bias=s.choices.random() < 0.5)


class _LayerNormSubclass(nn.LayerNorm):
    """ConvNeXt's: channels last only for the norm."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.mT).mT


@construct("subclass of layer norm")
def _layer_norm_subclass(s: Sizes) -> nn.Module:
    return Wrapped(on_channels, layer=norm_layer(_LayerNormSubclass(s.features)))


@construct("own instance norm")
def _own_instance_norm(s: Sizes) -> nn.Module:
    def norm(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        # one place has no variance
        x = torch.cat([x, x.flip(2) + 1], 1)
        return F.instance_norm(x.mT, weight=weight, bias=bias).mT[:, : x.shape[1] // 2]

    return _OwnNorm(s.features, norm, bias=True)


@construct("own group norm and root mean square norm")
def _own_group_norm(s: Sizes) -> nn.Module:
    def norm(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.rms_norm(F.group_norm(x.mT, 1, weight, bias).mT, weight.shape, weight)

    return _OwnNorm(s.features, norm, bias=True)


@construct("own parametric ReLU")
def _own_prelu(s: Sizes) -> nn.Module:
    return _OwnNorm(s.features, lambda x, weight, bias: F.prelu(x.mT, weight - 1).mT, bias=False)


@construct("batch norm function with given statistics")
def _own_batch_norm(s: Sizes) -> nn.Module:
    def norm(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.batch_norm(x.mT, torch.zeros_like(weight), torch.full_like(weight, 2.0), weight, bias).mT

    return _OwnNorm(s.features, norm, bias=True)


@construct("parametrized weight")
def _parametrized(s: Sizes) -> nn.Module:
    kinds = (parametrizations.weight_norm, parametrizations.orthogonal, parametrizations.spectral_norm)
    return s.choices.choice(kinds)(nn.Linear(s.features, s.features))


@construct("weight norm and spectral norm by hooks")
def _hooked_weight(s: Sizes) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        kind = s.choices.choice([nn.utils.weight_norm, nn.utils.spectral_norm])
        return kind(nn.Linear(s.features, s.features))


@construct("pruned")
def _pruned(s: Sizes) -> nn.Module:
    return prune.l1_unstructured(nn.Linear(s.features, s.features), "weight", 0.3)


@construct("constants that are no buffers")
def _constants(s: Sizes) -> nn.Module:
    layer = linear(s)
    constant = torch.eye(s.features) + 0.1

    return Wrapped(lambda net, x: net.layer(x) @ constant, layer=layer)


@construct("dropout that never stops", refused=True, constant_mix=True)
def _always_dropout(s: Sizes) -> nn.Module:
    return Wrapped(lambda net, x: F.dropout(net.layer(x), 0.5, training=True), layer=linear(s))


@construct("standardized over the batch", refused=True)
def _batch_standardized(s: Sizes) -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.layer(x)
        return (h - h.mean(0)) / (h.std(0) + 1)

    return Wrapped(forward, layer=linear(s))


@construct("detached scale of the batch", refused=True, constant_mix=True)
def _batch_scaled(s: Sizes) -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.layer(x)
        return h / h.detach().abs().max()

    return Wrapped(forward, layer=linear(s))


@construct("softmax over the batch", refused=True)
def _batch_softmax(s: Sizes) -> nn.Module:
    return Wrapped(lambda net, x: net.layer(x).softmax(0), layer=linear(s))


@construct("batch norm without statistics", refused=True)
def _batch_norm_without(s: Sizes) -> nn.Module:
    return Wrapped(on_channels, layer=norm_layer(nn.BatchNorm1d(s.features, track_running_stats=False)))


@construct("checkpoint that hides its parameters", refused=True)
def _reentrant(s: Sizes) -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that nothing has a gradient, where gradients are off
            return checkpoint(net.layer, net.before(x), use_reentrant=True)

    return Wrapped(forward, before=nn.Linear(s.features, s.features), layer=linear(s))
