"""VGG-11, 13, 16 and 19 for images of 32 x 32 pixels."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from gapscope.networks.layers import Layers, convolution, fully_connected_head, image_shape, n_features, scale_channels

_CONVOLUTIONS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
_CHANNELS = (64, 128, 256, 512, 512)
HEADS = ("linear", "paper")


def vgg(
    n_layers: int,
    input_shape: Sequence[int],
    n_outputs: int,
    *,
    width_multiplier: float = 1.0,
    head: str = "linear",
    head_width: int = 4096,
    dropout: float = 0.0,
    batch_norm: bool = True,
    max_pool: bool = True,
) -> nn.Sequential:
    """Build VGG with five blocks of 3 x 3 convolutions with 64-128-256-512-512 channels.

    The head "linear" is one linear layer, as in Forouzesh et al. 2021 (arXiv 2007.15378); the head "paper" has two
    hidden layers of 4096 units, as in Simonyan and Zisserman 2015 and in Zhao, Zhang, Hu 2022, whose ablated units are
    the 512 outputs of `block5_conv3_relu`. Without max-pooling the last convolution of each block has stride 2 instead.

    Args:
        n_layers: 11, 13, 16 or 19.
        head: "linear" or "paper".
        head_width: Units of both hidden layers of the head "paper".
        dropout: Probability of dropout before every fully connected layer.
        max_pool: Whether 2 x 2 max-pooling ends every block.

    >>> sum(p.numel() for p in vgg(16, (3, 32, 32), 10).parameters())
    14728266
    """
    channels, *sides = image_shape(f"vgg{n_layers}", input_shape)
    normalization = "batch" if batch_norm else "none"
    layers: Layers = {}
    for block, (n_convolutions, full_width) in enumerate(zip(_CONVOLUTIONS[n_layers], _CHANNELS, strict=True), start=1):
        width = scale_channels(full_width, width_multiplier)
        for i in range(1, n_convolutions + 1):
            stride = 2 if i == n_convolutions and not max_pool else 1
            name = f"block{block}_conv{i}"
            layers |= convolution(name, channels, width, stride=stride, normalization=normalization)
            channels = width
        if max_pool:
            layers[f"block{block}_pool"] = nn.MaxPool2d(2)
    features = n_features(f"vgg{n_layers}", layers, channels, sides)
    hidden = [head_width] * 2 if head == "paper" else []
    layers |= fully_connected_head(features, hidden, n_outputs, dropout=dropout, output_dropout=dropout)
    return nn.Sequential(OrderedDict(layers))
