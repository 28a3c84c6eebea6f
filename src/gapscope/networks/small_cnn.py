"""A small convolutional network for small images, such as handwritten digits of 8 x 8 pixels."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from gapscope.networks.layers import Layers, convolution, fully_connected_head, image_shape, n_features, scale_channels


def small_cnn(
    input_shape: Sequence[int],
    n_outputs: int,
    *,
    width_multiplier: float = 1.0,
    depth: int = 3,
    dropout: float = 0.0,
    batch_norm: bool = False,
) -> nn.Sequential:
    """Build conv32-conv64-pool-conv64-pool-fc128 (depth 3).

    Convolutions are 3 x 3 and keep the size of the image. The first has 32 channels, all others 64; each of the last
    two is followed by 2 x 2 max-pooling.

    Args:
        depth: Number of convolutions.
        dropout: Probability of dropout before both fully connected layers.

    >>> sum(p.numel() for p in small_cnn((1, 8, 8), 10).parameters())
    89930
    """
    channels, *sides = image_shape("small_cnn", input_shape)
    normalization = "batch" if batch_norm else "none"
    layers: Layers = {}
    for i in range(1, depth + 1):
        width = scale_channels(32 if i == 1 else 64, width_multiplier)
        layers |= convolution(f"conv{i}", channels, width, normalization=normalization)
        if i > depth - 2:
            layers[f"conv{i}_pool"] = nn.MaxPool2d(2)
        channels = width
    features = n_features("small_cnn", layers, channels, sides)
    hidden = [scale_channels(128, width_multiplier)]
    layers |= fully_connected_head(
        features, hidden, n_outputs, dropout=dropout, output_dropout=dropout, normalization=normalization
    )
    return nn.Sequential(OrderedDict(layers))
