"""Plain convolutional networks by their number of convolutions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from gapscope.networks.layers import Layers, convolution, dense, dropout_layers, image_shape, n_features


def plain_cnn(
    input_shape: Sequence[int],
    n_outputs: int,
    *,
    n_conv: int = 4,
    channels: int = 5,
    hidden: int = 100,
    dropout: float = 0.0,
    batch_norm: bool = False,
    max_pool: bool = False,
) -> nn.Sequential:
    """Build a network of `n_conv` unpadded 3 x 3 convolutions and one hidden layer.

    The "m-layer CNN" of Forouzesh et al. 2021 (arXiv 2007.15378), Fig. 2, whose sizes are tied: `channels` = (`hidden`
    - 100) / 20 + 5 with `hidden` = 100, 120, ..., 480. Its Fig. 2(e) leaves the places of dropout, batch normalization
    and max-pooling open; the order here is convolution, batch normalization, ReLU, dropout, pooling.

    Args:
        n_conv: Number of convolutions.
        channels: Channels of every convolution.
        hidden: Units of the hidden fully connected layer.
        dropout: Probability of dropout after every ReLU (0.5 is customary).
        max_pool: Whether 2 x 2 max-pooling follows every convolution.

    >>> sum(p.numel() for p in plain_cnn((3, 32, 32), 10, n_conv=1).parameters())
    451250
    """
    in_channels, *sides = image_shape("plain_cnn", input_shape)
    normalization = "batch" if batch_norm else "none"
    layers: Layers = {}
    for i in range(1, n_conv + 1):
        layers |= convolution(f"conv{i}", in_channels, channels, padding=0, normalization=normalization)
        layers |= dropout_layers(f"conv{i}", dropout)
        if max_pool:
            layers[f"conv{i}_pool"] = nn.MaxPool2d(2)
        in_channels = channels
    features = n_features("plain_cnn", layers, channels, sides)
    layers["flatten"] = nn.Flatten()
    layers |= dense("fc1", features, hidden, normalization=normalization)
    layers |= dropout_layers("fc1", dropout)
    layers["output"] = nn.Linear(hidden, n_outputs)
    return nn.Sequential(OrderedDict(layers))
