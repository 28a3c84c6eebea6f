"""Words of the fuzzer's grammar, and what constructs share."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Sizes:
    """Sizes of one network, and the source of its further choices."""

    n: int
    places: int
    features: int
    outputs: int
    choices: random.Random = field(compare=False)


@dataclass(frozen=True)
class Construct:
    """One word of the grammar."""

    build: Callable[[Sizes], nn.Module]
    second_order: bool = True  # whether torch can differentiate it twice
    half: bool = False  # whether torch has it in bfloat16
    # whether it mixes samples, draws random numbers or hides its parameters, so that measures must refuse it
    refused: bool = False
    # whether no gradient flows through what is mixed or drawn, so that the batch as it was run has gradients of
    # individual samples, which is what the penalty takes
    constant_mix: bool = False


# Filled by the modules `layers`, `modules` and `parameters`.
CONSTRUCTS: dict[str, Construct] = {}
HEADS: dict[str, Construct] = {}


def mixed_over_places(x: Tensor) -> Tensor:
    """Let every place see the others, so that a gradient lost at one place is felt."""
    return x + 0.5 * x.mean(1, keepdim=True)


def on_channels(net: Any, x: Tensor) -> Tensor:
    return net.layer(x.mT).mT


def random_scales(parameter: nn.Parameter) -> nn.Parameter:
    """Scales that are not all one."""
    with torch.no_grad():
        parameter.uniform_(0.5, 1.5)
    return parameter


def norm_layer(layer: nn.Module) -> nn.Module:
    """The layer with scales that are not all one, and with statistics of some data."""
    for parameter in layer.parameters():
        random_scales(parameter)
    for name, buffer in layer.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_()
        elif name.endswith("running_var"):
            buffer.uniform_(0.5, 2)
    return layer


def places_first(net: Any, x: Tensor) -> Tensor:
    return net.layer(x.transpose(0, 1)).transpose(0, 1)


def merged(net: Any, x: Tensor) -> Tensor:
    """Samples and places as rows."""
    return net.layer(x.flatten(0, 1)).view_as(x)


def token(x: Tensor, rows: int) -> Tensor:
    return (3 * x[..., 0].detach().abs()).long().clamp(max=rows - 1)


def linear(s: Sizes) -> nn.Linear:
    return nn.Linear(s.features, s.features, bias=s.choices.random() < 0.7)
