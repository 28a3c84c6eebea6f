"""The six-layer convolutional network of the batch normalization study."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from gapscope.networks.layers import Layers, convolution, fully_connected_head, image_shape, n_features, scale_channels


def conv6(
    input_shape: Sequence[int], n_outputs: int, *, width_multiplier: float = 1.0, normalization: str = "batch"
) -> nn.Sequential:
    """Build conv(3,32)-conv(3,32)-conv(3,64)-conv(3,64)-pool(2,2)-fc(512)-fc.

    Luo et al. 2019 (arXiv 1809.00846), App. B, who leave padding and places of the normalization open: here
    convolutions keep the size of the image, and normalization follows all four convolutions and the hidden layer,
    before ReLU. All layers have a bias, so that every kind of normalization can be put in or taken out afterwards.

    >>> sum(p.numel() for p in conv6((3, 32, 32), 10, normalization="none").parameters())
    8459818
    """
    channels, *sides = image_shape("conv6", input_shape)
    layers: Layers = {}
    for i, full_width in enumerate((32, 32, 64, 64), start=1):
        width = scale_channels(full_width, width_multiplier)
        layers |= convolution(f"conv{i}", channels, width, normalization=normalization)
        channels = width
    layers["pool"] = nn.MaxPool2d(2)
    features = n_features("conv6", layers, channels, sides)
    hidden = [scale_channels(512, width_multiplier)]
    layers |= fully_connected_head(features, hidden, n_outputs, normalization=normalization)
    return nn.Sequential(OrderedDict(layers))
