"""MobileNet (version 1) for images of 32 x 32 pixels."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from gapscope.networks.layers import convolution, image_shape, pooled_head, scale_channels

# (channels, stride) of each depthwise-separable block
_BLOCKS = (
    (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1), (512, 1), (512, 1), (512, 1), (512, 1),
    (1024, 2), (1024, 1),
)  # fmt: skip


def mobilenet(
    input_shape: Sequence[int], n_outputs: int, *, width_multiplier: float = 1.0, normalization: str = "batch"
) -> nn.Sequential:
    """Build MobileNet: 13 blocks of a depthwise 3 x 3 and a pointwise 1 x 1 convolution.

    Howard et al. 2017 with stride 1 in the first convolution, so that images of 32 x 32 pixels end as 2 x 2. Zhao,
    Zhang, Hu 2022 use it on CIFAR-100; their ablated units are the 1024 outputs of `block13_pointwise_relu`.

    >>> sum(p.numel() for p in mobilenet((3, 32, 32), 10).parameters())
    3217226
    """
    in_channels, *_ = image_shape("mobilenet", input_shape)
    bias = normalization == "none"
    channels = scale_channels(32, width_multiplier)
    layers = convolution("conv1", in_channels, channels, bias=bias, normalization=normalization)
    for block, (full_width, stride) in enumerate(_BLOCKS, start=1):
        width = scale_channels(full_width, width_multiplier)
        name = f"block{block}_depthwise"
        layers |= convolution(
            name, channels, channels, stride=stride, groups=channels, bias=bias, normalization=normalization
        )
        name = f"block{block}_pointwise"
        layers |= convolution(name, channels, width, kernel_size=1, padding=0, bias=bias, normalization=normalization)
        channels = width
    return nn.Sequential(OrderedDict(layers | pooled_head(channels, n_outputs)))
