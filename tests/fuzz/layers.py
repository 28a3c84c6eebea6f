"""Constructs: layers that have a rule; read-outs [n, places, features] to [n, outputs]."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fuzz.construct import (
    CONSTRUCTS,
    HEADS,
    Construct,
    Sizes,
    linear,
    merged,
    norm_layer,
    on_channels,
    places_first,
    token,
)
from gradients.reference import Wrapped


def _merged_places_first(net: Any, x: Tensor) -> Tensor:
    rows = x.transpose(0, 1).flatten(0, 1)
    return net.layer(rows).unflatten(0, (x.shape[1], len(x))).transpose(0, 1)


def _convolution(s: Sizes) -> nn.Module:
    mode = "zeros" if s.choices.random() < 0.5 else "replicate"
    groups = s.choices.choice([1, s.features])
    return Wrapped(
        on_channels,
        layer=nn.Conv1d(s.features, s.features, 3, padding=1, padding_mode=mode, groups=groups),
    )


def _instance_norm(s: Sizes) -> nn.Module:
    running = s.places == 1 or s.choices.random() < 0.5
    return Wrapped(
        on_channels,
        layer=norm_layer(nn.InstanceNorm1d(s.features, affine=True, track_running_stats=running)),
    )


def _look_up(net: Any, x: Tensor) -> Tensor:
    return x + net.table(token(x, 5))


def _tied_embedding(net: Any, x: Tensor) -> Tensor:
    return F.linear((x + net.table(token(x, x.shape[2]))).tanh(), net.table.weight)


def _embedding_bag(s: Sizes) -> nn.Module:
    bag = nn.EmbeddingBag(5, s.features, mode=s.choices.choice(["sum", "mean"]))
    return Wrapped(lambda net, x: x + net.bag(token(x, 5))[:, None], bag=bag)


def causal(x: Tensor) -> Tensor:
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)


def _attention_places_first(net: Any, x: Tensor) -> Tensor:
    h = x.transpose(0, 1)
    return net.layer(h, h, h, attn_mask=causal(x))[0].transpose(0, 1)


def _attention_extra_keys(s: Sizes) -> nn.Module:
    layer = nn.MultiheadAttention(s.features, 1, batch_first=True, add_bias_kv=True)
    return Wrapped(
        lambda net, x: net.layer(x, x, x, attn_mask=causal(x), need_weights=False)[0], layer=layer
    )


def _transformer(s: Sizes) -> nn.Module:
    return Wrapped(
        places_first, layer=nn.TransformerEncoderLayer(s.features, 1, 3, activation="gelu")
    )


def _decoder(net: Any, x: Tensor) -> Tensor:
    h = x.transpose(0, 1)
    return net.layer(h, h.tanh()).transpose(0, 1)


CONSTRUCTS |= {
    "linear": Construct(linear, half=True),
    "linear, places first": Construct(lambda s: Wrapped(places_first, layer=linear(s)), half=True),
    "linear, samples and places merged": Construct(
        lambda s: Wrapped(merged, layer=linear(s)), half=True
    ),
    "linear, places before samples merged": Construct(
        lambda s: Wrapped(_merged_places_first, layer=linear(s))
    ),
    "convolution over places": Construct(_convolution, half=True),
    "batch norm": Construct(
        lambda s: Wrapped(on_channels, layer=norm_layer(nn.BatchNorm1d(s.features))), half=True
    ),
    "batch norm on merged samples and places": Construct(
        lambda s: Wrapped(merged, layer=norm_layer(nn.BatchNorm1d(s.features)))
    ),
    "instance norm": Construct(_instance_norm),
    "layer norm": Construct(
        lambda s: norm_layer(
            nn.LayerNorm(s.choices.choice([[s.features], [s.places, s.features]]))
        ),
        half=True,
    ),
    "layer norm, places first": Construct(
        lambda s: Wrapped(places_first, layer=norm_layer(nn.LayerNorm(s.features)))
    ),
    "embedding": Construct(
        lambda s: Wrapped(
            _look_up, table=nn.Embedding(5, s.features, padding_idx=s.choices.choice([None, 0]))
        )
    ),
    "sparse embedding": Construct(
        lambda s: Wrapped(_look_up, table=nn.Embedding(5, s.features, sparse=True)),
        second_order=False,
    ),
    "embedding tied with a read-out": Construct(
        lambda s: Wrapped(_tied_embedding, table=nn.Embedding(s.features, s.features))
    ),
    "embedding bag": Construct(_embedding_bag, second_order=False),
    "attention, places first, causal": Construct(
        lambda s: Wrapped(_attention_places_first, layer=nn.MultiheadAttention(s.features, 1))
    ),
    "attention with learned keys and a mask of places": Construct(_attention_extra_keys),
    "transformer layer, places first": Construct(_transformer),
    "transformer decoder, places first": Construct(
        lambda s: Wrapped(
            _decoder, layer=nn.TransformerDecoderLayer(s.features, 1, 3, activation="gelu")
        )
    ),
}


def _flat_head(s: Sizes) -> nn.Module:
    layer = nn.Linear(s.places * s.features, s.outputs, bias=s.choices.random() < 0.5)
    return Wrapped(lambda net, x: net.layer(x.flatten(1)), layer=layer)


def _cosine_head(s: Sizes) -> nn.Module:
    # One cosine more than outputs: a single one is a sign, whose zero derivative is all rounding.
    def forward(net: Any, x: Tensor) -> Tensor:
        return net.scale.exp() * F.normalize(net.layer(x.mean(1) + 0.1))[:, : s.outputs]

    return Wrapped(
        forward, layer=nn.Linear(s.features, s.outputs + 1), scale=nn.Parameter(torch.tensor(0.4))
    )


def _zero_head(s: Sizes) -> nn.Module:
    layer = nn.Linear(s.features, s.outputs)
    nn.init.zeros_(layer.weight)
    return Wrapped(lambda net, x: net.layer(x[:, -1]), layer=layer)


def _constant_head(s: Sizes) -> nn.Module:
    bias = nn.Parameter(torch.rand(s.outputs))
    return Wrapped(lambda net, x: (net.bias * 2).expand(len(x), s.outputs) * 1.0, bias=bias)


HEADS |= {
    "mean of the places": Construct(
        lambda s: Wrapped(
            lambda net, x: net.layer(x.mean(1)), layer=nn.Linear(s.features, s.outputs)
        ),
        half=True,
    ),
    "all places": Construct(_flat_head, half=True),
    "cosines with a scalar scale": Construct(_cosine_head),
    "weight by hand": Construct(
        lambda s: Wrapped(
            lambda net, x: x.mean(1) @ net.weight,
            weight=nn.Parameter(torch.randn(s.features, s.outputs)),
        )
    ),
    "no parameters": Construct(
        lambda s: Wrapped(lambda net, x: x.mean(1).repeat(1, s.outputs)[:, : s.outputs])
    ),
    "zero-initialised": Construct(_zero_head),
    "constant outputs": Construct(_constant_head),
}
