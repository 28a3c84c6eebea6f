"""Constructs that measures must refuse: an output depends on other samples or on chance, or hides its parameters.

The penalty takes the gradients of the batch as it was run: where no gradient flows from sample to sample (a detached
scale, a mask) they are well defined, and otherwise the penalty refuses too.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fuzz.construct import (
    Sizes,
    construct,
    linear,
    norm_layer,
    on_channels,
)
from gradients.reference import Wrapped


@construct("dropout that never stops", "W7", refused=True, constant_mix=True)
def _always_dropout(s: Sizes) -> nn.Module:
    return Wrapped(lambda net, x: F.dropout(net.layer(x), 0.5, training=True), layer=linear(s))


@construct("standardized over the batch", "W14", refused=True)
def _batch_standardized(s: Sizes) -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.layer(x)
        return (h - h.mean(0)) / (h.std(0) + 1)

    return Wrapped(forward, layer=linear(s))


@construct("detached scale of the batch", "W7", refused=True, constant_mix=True)
def _batch_scaled(s: Sizes) -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.layer(x)
        return h / h.detach().abs().max()

    return Wrapped(forward, layer=linear(s))


@construct("softmax over the batch", refused=True)
def _batch_softmax(s: Sizes) -> nn.Module:
    return Wrapped(lambda net, x: net.layer(x).softmax(0), layer=linear(s))


@construct("batch norm without statistics", "W7", "C7", refused=True)
def _batch_norm_without(s: Sizes) -> nn.Module:
    return Wrapped(on_channels, layer=norm_layer(nn.BatchNorm1d(s.features, track_running_stats=False)))


@construct("checkpoint that hides its parameters", "C9", refused=True)
def _reentrant(s: Sizes) -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that nothing has a gradient, where gradients are off
            return checkpoint(net.layer, net.before(x), use_reentrant=True)

    return Wrapped(forward, before=nn.Linear(s.features, s.features), layer=linear(s))
