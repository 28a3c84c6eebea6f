"""LeNet-5 with ReLU and max-pooling."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from gapscope.networks.layers import Layers, convolution, fully_connected_head, image_shape, n_features, scale_channels


def lenet5(
    input_shape: Sequence[int],
    n_outputs: int,
    *,
    width_multiplier: float = 1.0,
    dropout: float = 0.0,
    batch_norm: bool = False,
) -> nn.Sequential:
    """Build LeNet-5 in its present form (6-16-120-84, ReLU, max-pooling).

    Images smaller than 32 x 32 are padded by 2 in the first convolution, so that 28 x 28 images have the feature maps
    that LeCun et al. 1998 have for 32 x 32. Szolnoky et al. 2022 (arXiv 2205.12642, Tables 1 and 2) use a LeNet-5
    without saying more.

    Args:
        dropout: Probability of dropout before every fully connected layer.

    >>> sum(p.numel() for p in lenet5((1, 28, 28), 10).parameters())
    61706
    """
    channels, *sides = image_shape("lenet5", input_shape)
    first, second, *hidden = (scale_channels(width, width_multiplier) for width in (6, 16, 120, 84))
    normalization = "batch" if batch_norm else "none"
    padding = 2 if min(sides) < 32 else 0
    layers: Layers = {
        **convolution("conv1", channels, first, kernel_size=5, padding=padding, normalization=normalization),
        "conv1_pool": nn.MaxPool2d(2),
        **convolution("conv2", first, second, kernel_size=5, padding=0, normalization=normalization),
        "conv2_pool": nn.MaxPool2d(2),
    }
    features = n_features("lenet5", layers, second, sides)
    layers |= fully_connected_head(
        features, hidden, n_outputs, dropout=dropout, output_dropout=dropout, normalization=normalization
    )
    return nn.Sequential(OrderedDict(layers))
