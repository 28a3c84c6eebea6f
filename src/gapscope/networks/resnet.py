"""ResNet-18 and 34 in their CIFAR form, and the narrow ResNet-20."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from gapscope.networks.layers import (
    Layers,
    convolution,
    dropout_layers,
    image_shape,
    normalization_layers,
    pooled_head,
    scale_channels,
)

# n_layers: (channels, blocks) of each stage
_STAGES = {
    18: ((64, 2), (128, 2), (256, 2), (512, 2)),
    20: ((16, 3), (32, 3), (64, 3)),
    34: ((64, 3), (128, 4), (256, 6), (512, 3)),
}


class PaddedShortcut(nn.Module):
    """Parameter-free shortcut: every `stride`-th pixel, channels padded with zeros."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.channels = channels
        self.stride = stride

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c2 h2 w2"]:
        """Return the smaller image with more channels."""
        missing = self.channels - x.shape[1]
        padding = (0, 0, 0, 0, missing // 2, missing - missing // 2)
        return functional.pad(x[:, :, :: self.stride, :: self.stride], padding)


class ResidualBlock(nn.Module):
    """ReLU of a branch plus a shortcut (the ReLU is the submodule `relu`)."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut
        self.relu = nn.ReLU()

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c2 h2 w2"]:
        """Return the block's feature maps."""
        return self.relu(self.branch(x) + self.shortcut(x))


def _block(
    in_channels: int, channels: int, stride: int, normalization: str, padded_shortcut: bool
) -> ResidualBlock:
    bias = normalization == "none"
    branch: Layers = {
        **convolution(
            "conv1", in_channels, channels, stride=stride, bias=bias, normalization=normalization
        ),
        **convolution("conv2", channels, channels, bias=bias, normalization=normalization),
    }
    del branch["conv2_relu"]  # it comes after the sum
    if stride == 1 and in_channels == channels:
        shortcut = nn.Identity()
    elif padded_shortcut:
        shortcut = PaddedShortcut(channels, stride)
    else:
        projection: Layers = {"conv": nn.Conv2d(in_channels, channels, 1, stride, bias=bias)}
        shortcut = nn.Sequential(
            OrderedDict(projection | normalization_layers("conv", channels, normalization))
        )
    return ResidualBlock(nn.Sequential(OrderedDict(branch)), shortcut)


def resnet(
    n_layers: int,
    input_shape: Sequence[int],
    n_outputs: int,
    *,
    width_multiplier: float = 1.0,
    normalization: str = "batch",
    dropout: float = 0.0,
) -> Layers:
    """Build a residual network for small images, in blocks of two 3 x 3 convolutions.

    ResNet-18 and 34 have four stages with 64-128-256-512 channels after a 3 x 3 convolution of stride 1 (the CIFAR
    form, without the first pooling), and 1 x 1 convolutions where a shortcut changes shape; Forouzesh et al. 2021
    (arXiv 2007.15378) and Luo et al. 2019 (arXiv 1809.00846) use them. ResNet-20 has three stages with 16-32-64
    channels and shortcuts without parameters (He et al. 2016, Sec. 4.2); Szolnoky et al. 2022 (arXiv 2205.12642),
    Fig. 4, name it without details. Convolutions have a bias only if no normalization follows.

    Args:
        n_layers: 18, 20 or 34.
        input_shape: Shape of one sample, (channels, height, width) for convolutional networks.
        n_outputs: Number of outputs (classes, or regression targets).
        width_multiplier: Factor of all channels and hidden units.
        normalization: "batch", "group" (samples stay independent in training mode) or "none", after every convolution.
        dropout: Probability of dropout after every residual block (Luo et al. 2019, Fig. 2g: 0.1 or 0.2).
    """
    in_channels, *_ = image_shape(f"resnet{n_layers}", input_shape)
    stages = [
        (scale_channels(width, width_multiplier), n_blocks) for width, n_blocks in _STAGES[n_layers]
    ]
    channels = stages[0][0]
    bias = normalization == "none"
    layers = convolution("conv1", in_channels, channels, bias=bias, normalization=normalization)
    for stage, (width, n_blocks) in enumerate(stages, start=1):
        for block in range(1, n_blocks + 1):
            stride = 1
            if stage > 1 and block == 1:
                stride = 2
            name = f"stage{stage}_block{block}"
            layers[name] = _block(
                channels, width, stride, normalization, padded_shortcut=n_layers == 20
            )
            layers |= dropout_layers(name, dropout)
            channels = width
    return layers | pooled_head(channels, n_outputs)
