"""Building blocks of the network families: named layers in execution order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import count, pairwise

from torch import nn

from gapscope.base.errors import InvalidInput

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "gelu": nn.GELU,
    "identity": nn.Identity,
}
NORMALIZATIONS = ("none", "batch", "group")

Layers = dict[str, nn.Module]


def scale_channels(channels: int, width_multiplier: float) -> int:
    """Return `channels` times the multiplier, rounded, and at least 1."""
    return max(1, round(channels * width_multiplier))


def normalization_layers(
    name: str, channels: int, normalization: str, *, images: bool = True
) -> Layers:
    """Return the normalization `<name>_norm` ("batch" or "group"), or nothing for "none".

    Group normalization has 8 groups, or as many as divide both 8 and the number of channels.
    """
    if normalization == "none":
        return {}
    if normalization == "group":
        return {f"{name}_norm": nn.GroupNorm(math.gcd(channels, 8), channels)}
    return {f"{name}_norm": nn.BatchNorm2d(channels) if images else nn.BatchNorm1d(channels)}


def dropout_layers(name: str, probability: float) -> Layers:
    """Return the dropout called `<name>_dropout`, or nothing for probability 0."""
    if probability:
        return {f"{name}_dropout": nn.Dropout(probability)}
    return {}


def convolution(
    name: str,
    in_channels: int,
    channels: int,
    *,
    kernel_size: int = 3,
    stride: int = 1,
    padding: int = 1,
    groups: int = 1,
    bias: bool = True,
    normalization: str = "none",
) -> Layers:
    """Return a convolution `<name>`, `<name>_norm` if any, and `<name>_relu`."""
    return {
        name: nn.Conv2d(
            in_channels, channels, kernel_size, stride, padding, groups=groups, bias=bias
        ),
        **normalization_layers(name, channels, normalization),
        f"{name}_relu": nn.ReLU(),
    }


def dense(
    name: str, n_inputs: int, n_units: int, *, activation: str = "relu", normalization: str = "none"
) -> Layers:
    """Return a linear layer `<name>`, `<name>_norm` if any, and its activation."""
    return {
        name: nn.Linear(n_inputs, n_units),
        **normalization_layers(name, n_units, normalization, images=False),
        f"{name}_{activation}": ACTIVATIONS[activation](),
    }


def fully_connected_head(
    n_inputs: int,
    hidden: Sequence[int],
    n_outputs: int,
    *,
    dropout: float = 0.0,
    output_dropout: float = 0.0,
    normalization: str = "none",
) -> Layers:
    """Return `flatten`, hidden layers `fc1`, `fc2`, ... with ReLU, and `output`.

    Dropout precedes each hidden layer, `output_dropout` the last one.
    """
    layers: Layers = {"flatten": nn.Flatten()}
    widths = [n_inputs, *hidden]
    for i, (n_in, n_units) in enumerate(pairwise(widths), start=1):
        layers |= dropout_layers(f"fc{i}", dropout)
        layers |= dense(f"fc{i}", n_in, n_units, normalization=normalization)
    layers |= dropout_layers("output", output_dropout)
    layers["output"] = nn.Linear(widths[-1], n_outputs)
    return layers


def pooled_head(channels: int, n_outputs: int) -> Layers:
    """Return `pool` (mean over all pixels), `flatten` and the linear layer `output`."""
    return {
        "pool": nn.AdaptiveAvgPool2d(1),
        "flatten": nn.Flatten(),
        "output": nn.Linear(channels, n_outputs),
    }


def image_shape(network: str, input_shape: Sequence[int]) -> tuple[int, int, int]:
    """Return `input_shape` as (channels, height, width), or raise InvalidInput."""
    if len(input_shape) != 3:
        raise InvalidInput(
            f"{network} needs images, input_shape (channels, height, width); got {tuple(input_shape)}. "
            "Choose fully_connected for other data."
        )
    channels, height, width = input_shape
    return channels, height, width


def _sides_after(layers: Mapping[str, nn.Module], sides: Sequence[int]) -> list[int]:
    """Return height and width after convolutions and pooling (0 if the image is too small)."""
    sides = list(sides)
    for layer in layers.values():
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d):
            values = (layer.kernel_size, layer.stride, layer.padding)
            kernel, stride, padding = (v if isinstance(v, int) else int(v[0]) for v in values)
            sides = [max(0, (side + 2 * padding - kernel) // stride + 1) for side in sides]
    return sides


def n_features(
    network: str, layers: Mapping[str, nn.Module], channels: int, sides: Sequence[int]
) -> int:
    """Return the number of features per sample after convolutions and pooling."""
    remaining = _sides_after(layers, sides)
    if 0 in remaining:
        smallest = next(side for side in count(1) if all(_sides_after(layers, (side, side))))
        raise InvalidInput(
            f"{network} needs images of at least {smallest} x {smallest} pixels; got {sides[0]} x {sides[1]}. "
            "Enlarge or pad the images, or choose a network with fewer pooling steps, such as small_cnn."
        )
    return channels * math.prod(remaining)
