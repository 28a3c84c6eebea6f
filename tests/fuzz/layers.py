"""Constructs: layers that have a rule; read-outs [n, places, features] to [n, outputs]."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fuzz.construct import Sizes, construct, head, linear, norm_layer, on_channels, token
from gradients.reference import Wrapped


@construct("linear", half=True)
def _linear(s: Sizes) -> nn.Module:
    return linear(s)


@construct("linear, places first", half=True)
def _places_first(s: Sizes) -> nn.Module:
    return Wrapped(lambda net, x: net.layer(x.transpose(0, 1)).transpose(0, 1), layer=linear(s))


@construct("linear, samples and places merged", half=True)
def _merged(s: Sizes) -> nn.Module:
    return Wrapped(lambda net, x: net.layer(x.flatten(0, 1)).view_as(x), layer=linear(s))


@construct("linear, places before samples merged")
def _merged_places_first(s: Sizes) -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        rows = x.transpose(0, 1).flatten(0, 1)
        return net.layer(rows).unflatten(0, (x.shape[1], len(x))).transpose(0, 1)

    return Wrapped(forward, layer=linear(s))


@construct("convolution over places", half=True)
def _convolution(s: Sizes) -> nn.Module:
    mode = "zeros" if s.choices.random() < 0.5 else "replicate"
    groups = s.choices.choice([1, s.features])
    return Wrapped(on_channels, layer=nn.Conv1d(s.features, s.features, 3, padding=1, padding_mode=mode, groups=groups))


@construct("batch norm", half=True)
def _batch_norm(s: Sizes) -> nn.Module:
    return Wrapped(on_channels, layer=norm_layer(nn.BatchNorm1d(s.features)))


@construct("batch norm on merged samples and places")
def _batch_norm_merged(s: Sizes) -> nn.Module:
    return Wrapped(lambda net, x: net.layer(x.flatten(0, 1)).view_as(x), layer=norm_layer(nn.BatchNorm1d(s.features)))


@construct("instance norm")
def _instance_norm(s: Sizes) -> nn.Module:
    running = s.places == 1 or s.choices.random() < 0.5
    return Wrapped(
        on_channels, layer=norm_layer(nn.InstanceNorm1d(s.features, affine=True, track_running_stats=running))
    )


@construct("layer norm", half=True)
def _layer_norm(s: Sizes) -> nn.Module:
    shape = s.choices.choice([[s.features], [s.places, s.features]])
    return norm_layer(nn.LayerNorm(shape))


@construct("layer norm, places first")
def _layer_norm_places_first(s: Sizes) -> nn.Module:
    layer = norm_layer(nn.LayerNorm(s.features))
    return Wrapped(lambda net, x: net.layer(x.transpose(0, 1)).transpose(0, 1), layer=layer)


@construct("embedding")
def _embedding(s: Sizes) -> nn.Module:
    padding = s.choices.choice([None, 0])
    return Wrapped(lambda net, x: x + net.table(token(x, 5)), table=nn.Embedding(5, s.features, padding_idx=padding))


@construct("sparse embedding", second_order=False)
def _sparse_embedding(s: Sizes) -> nn.Module:
    return Wrapped(lambda net, x: x + net.table(token(x, 5)), table=nn.Embedding(5, s.features, sparse=True))


@construct("embedding tied with a read-out")
def _tied_embedding(s: Sizes) -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        return F.linear((x + net.table(token(x, s.features))).tanh(), net.table.weight)

    return Wrapped(forward, table=nn.Embedding(s.features, s.features))


@construct("embedding bag", second_order=False)
def _embedding_bag(s: Sizes) -> nn.Module:
    bag = nn.EmbeddingBag(5, s.features, mode=s.choices.choice(["sum", "mean"]))
    return Wrapped(lambda net, x: x + net.bag(token(x, 5))[:, None], bag=bag)


def _attention_layer(s: Sizes, **options: Any) -> nn.MultiheadAttention:
    return nn.MultiheadAttention(s.features, 1, **options)


def causal(x: Tensor) -> Tensor:
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)


@construct("attention, places first, causal")
def _attention_places_first(s: Sizes) -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = x.transpose(0, 1)
        return net.layer(h, h, h, attn_mask=causal(x))[0].transpose(0, 1)

    return Wrapped(forward, layer=_attention_layer(s))


@construct("attention with learned keys and a mask of places")
def _attention_extra_keys(s: Sizes) -> nn.Module:
    layer = _attention_layer(s, batch_first=True, add_bias_kv=True)
    return Wrapped(lambda net, x: net.layer(x, x, x, attn_mask=causal(x), need_weights=False)[0], layer=layer)


@construct("transformer layer, places first")
def _transformer_places_first(s: Sizes) -> nn.Module:
    layer = nn.TransformerEncoderLayer(s.features, 1, 3, activation="gelu")
    return Wrapped(lambda net, x: net.layer(x.transpose(0, 1)).transpose(0, 1), layer=layer)


@construct("transformer decoder, places first")
def _decoder_places_first(s: Sizes) -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = x.transpose(0, 1)
        return net.layer(h, h.tanh()).transpose(0, 1)

    return Wrapped(forward, layer=nn.TransformerDecoderLayer(s.features, 1, 3, activation="gelu"))


@head("mean of the places", half=True)
def _mean_head(s: Sizes) -> nn.Module:
    return Wrapped(lambda net, x: net.layer(x.mean(1)), layer=nn.Linear(s.features, s.outputs))


@head("all places", half=True)
def _flat_head(s: Sizes) -> nn.Module:
    layer = nn.Linear(s.places * s.features, s.outputs, bias=s.choices.random() < 0.5)
    return Wrapped(lambda net, x: net.layer(x.flatten(1)), layer=layer)


@head("cosines with a scalar scale")
def _cosine_head(s: Sizes) -> nn.Module:
    # One cosine more than outputs: a single one is a sign, whose zero derivative is all rounding.
    def forward(net: Any, x: Tensor) -> Tensor:
        return net.scale.exp() * F.normalize(net.layer(x.mean(1) + 0.1))[:, : s.outputs]

    return Wrapped(forward, layer=nn.Linear(s.features, s.outputs + 1), scale=nn.Parameter(torch.tensor(0.4)))


@head("weight by hand")
def _hand_head(s: Sizes) -> nn.Module:
    weight = nn.Parameter(torch.randn(s.features, s.outputs))
    return Wrapped(lambda net, x: x.mean(1) @ net.weight, weight=weight)


@head("no parameters")
def _no_parameters(s: Sizes) -> nn.Module:
    return Wrapped(lambda net, x: x.mean(1).repeat(1, s.outputs)[:, : s.outputs])


@head("zero-initialised")
def _zero_head(s: Sizes) -> nn.Module:
    layer = nn.Linear(s.features, s.outputs)
    nn.init.zeros_(layer.weight)
    return Wrapped(lambda net, x: net.layer(x[:, -1]), layer=layer)


@head("constant outputs")
def _constant_head(s: Sizes) -> nn.Module:
    bias = nn.Parameter(torch.rand(s.outputs))
    return Wrapped(lambda net, x: (net.bias * 2).expand(len(x), s.outputs) * 1.0, bias=bias)
