"""AlexNet for images of 28 x 28 and 32 x 32 pixels."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from gapscope.networks.layers import Layers, convolution, fully_connected_head, image_shape, n_features, scale_channels

_CHANNELS = (64, 192, 384, 256, 256)
_POOLED = (1, 2, 5)


def alexnet(
    input_shape: Sequence[int],
    n_outputs: int,
    *,
    width_multiplier: float = 1.0,
    head_width: int = 4096,
    dropout: float = 0.5,
    batch_norm: bool = False,
    max_pool: bool = True,
) -> nn.Sequential:
    """Build AlexNet for small images: 3 x 3 convolutions with 64-192-384-256-256 channels.

    The first convolution has stride 2; 2 x 2 max-pooling follows the first, the second and the fifth. Without
    max-pooling these three convolutions have twice their stride instead, as is needed for Forouzesh et al. 2021 (arXiv
    2007.15378), Fig. 4, which does not say how. Szolnoky et al. 2022 (arXiv 2205.12642), Fig. 3, use it on MNIST.

    Args:
        head_width: Units of both hidden fully connected layers.
        dropout: Probability of dropout before both hidden fully connected layers.
        max_pool: Whether to pool; otherwise convolutions have larger strides.

    >>> sum(p.numel() for p in alexnet((3, 32, 32), 10).parameters())
    23272266
    """
    channels, *sides = image_shape("alexnet", input_shape)
    normalization = "batch" if batch_norm else "none"
    layers: Layers = {}
    for i, full_width in enumerate(_CHANNELS, start=1):
        width = scale_channels(full_width, width_multiplier)
        pooled = i in _POOLED
        stride = (2 if i == 1 else 1) * (2 if pooled and not max_pool else 1)
        layers |= convolution(f"conv{i}", channels, width, stride=stride, normalization=normalization)
        if pooled and max_pool:
            layers[f"conv{i}_pool"] = nn.MaxPool2d(2)
        channels = width
    features = n_features("alexnet", layers, channels, sides)
    layers |= fully_connected_head(features, [head_width] * 2, n_outputs, dropout=dropout, normalization=normalization)
    return nn.Sequential(OrderedDict(layers))
