"""Sequential networks: fully connected, AlexNet, conv6, LeNet-5, MobileNet, plain and VGG."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from gapscope.networks.layers import (
    Layers,
    convolution,
    dense,
    dropout_layers,
    fully_connected_head,
    image_shape,
    n_features,
    pooled_head,
    scale_channels,
)


def fully_connected(
    input_shape: Sequence[int],
    n_outputs: int,
    *,
    n_hidden: int = 2,
    width: int = 100,
    activation: str = "relu",
    dropout: float = 0.0,
    batch_norm: bool = False,
) -> Layers:
    r"""Build a fully connected network with `n_hidden` hidden layers of `width` units.

    For $D$ inputs, $M \ge 1$ hidden layers of $H$ units and $K$ outputs it has
    $(D+1)H + (M-1)(H+1)H + (H+1)K$ parameters. In Forouzesh et al. 2021 (arXiv 2007.15378) the "3-layer" networks of
    Fig. 2(a) have 2 hidden layers, the "L-layer" networks of Fig. 2(b) have L.

    Args:
        input_shape: Shape of one sample, (channels, height, width) for convolutional networks.
        n_outputs: Number of outputs (classes, or regression targets).
        n_hidden: Hidden layers; 0 is a linear model.
        width: Units of every hidden layer.
        activation: "relu", "tanh", "sigmoid", "gelu" or "identity".
        dropout: Probability of dropout after each hidden activation.
        batch_norm: Whether batch normalization precedes every activation.
    """
    layers: Layers = {"flatten": nn.Flatten()}
    n_inputs = math.prod(input_shape)
    for i in range(1, n_hidden + 1):
        normalization = "none"
        if batch_norm:
            normalization = "batch"
        layers |= dense(
            f"fc{i}", n_inputs, width, activation=activation, normalization=normalization
        )
        layers |= dropout_layers(f"fc{i}", dropout)
        n_inputs = width
    return layers | {"output": nn.Linear(n_inputs, n_outputs)}


# (channels, whether pooling follows) of the convolutions of Krizhevsky et al. 2012, for images of 32 pixels
_ALEXNET = ((64, True), (192, True), (384, False), (256, False), (256, True))
# (channels, stride) of each depthwise-separable block
_MOBILENET_BLOCKS = (
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    *[(512, 1)] * 5,
    (1024, 2),
    (1024, 1),
)
_VGG_CONVOLUTIONS = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}
# Simonyan and Zisserman 2015, table 1
_VGG_CHANNELS = (64, 128, 256, 512, 512)
HEADS = ("linear", "paper")


def alexnet(
    input_shape: Sequence[int],
    n_outputs: int,
    *,
    width_multiplier: float = 1.0,
    head_width: int = 4096,
    dropout: float = 0.5,
    batch_norm: bool = False,
    max_pool: bool = True,
) -> Layers:
    """Build AlexNet for small images: 3 x 3 convolutions with 64-192-384-256-256 channels.

    The first convolution has stride 2; 2 x 2 max-pooling follows the first, the second and the fifth. Without
    max-pooling these three convolutions have twice their stride, for Forouzesh et al. 2021 (arXiv 2007.15378), Fig. 4,
    which states no details. Szolnoky et al. 2022 (arXiv 2205.12642), Fig. 3, use AlexNet on MNIST.

    Args:
        input_shape: Shape of one sample, (channels, height, width) for convolutional networks.
        n_outputs: Number of outputs (classes, or regression targets).
        width_multiplier: Factor of all channels and hidden units.
        head_width: Units of both hidden fully connected layers.
        dropout: Probability of dropout before both hidden fully connected layers.
        batch_norm: Whether batch normalization precedes every activation.
        max_pool: Whether to pool, or to use larger strides.
    """
    channels, *sides = image_shape("alexnet", input_shape)
    normalization = "none"
    if batch_norm:
        normalization = "batch"
    layers: Layers = {}
    for i, (full_width, pooled) in enumerate(_ALEXNET, start=1):
        width = scale_channels(full_width, width_multiplier)
        stride = (2 if i == 1 else 1) * (2 if pooled and not max_pool else 1)
        layers |= convolution(
            f"conv{i}", channels, width, stride=stride, normalization=normalization
        )
        if pooled and max_pool:
            layers[f"conv{i}_pool"] = nn.MaxPool2d(2)
        channels = width
    features = n_features("alexnet", layers, channels, sides)
    hidden = [head_width] * 2
    return layers | fully_connected_head(
        features, hidden, n_outputs, dropout=dropout, normalization=normalization
    )


def conv6(
    input_shape: Sequence[int],
    n_outputs: int,
    *,
    width_multiplier: float = 1.0,
    normalization: str = "batch",
) -> Layers:
    """Build conv(3,32)-conv(3,32)-conv(3,64)-conv(3,64)-pool(2,2)-fc(512)-fc.

    Luo et al. 2019 (arXiv 1809.00846), App. B, do not state padding and positions of the normalization: here
    convolutions preserve the size of the image, and normalization follows all four convolutions and the hidden layer,
    before ReLU. All layers have a bias, so that every kind of normalization can be inserted or removed later.
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
    return layers | fully_connected_head(features, hidden, n_outputs, normalization=normalization)


def lenet5(
    input_shape: Sequence[int],
    n_outputs: int,
    *,
    width_multiplier: float = 1.0,
    dropout: float = 0.0,
    batch_norm: bool = False,
) -> Layers:
    """Build LeNet-5 in its modern form (6-16-120-84, ReLU, max-pooling).

    The first convolution pads images smaller than 32 x 32 by 2, so that 28 x 28 images have the same feature maps as
    32 x 32 images in LeCun et al. 1998. Szolnoky et al. 2022 (arXiv 2205.12642, Tables 1 and 2) state no details of
    their LeNet-5.

    Args:
        input_shape: Shape of one sample, (channels, height, width) for convolutional networks.
        n_outputs: Number of outputs (classes, or regression targets).
        width_multiplier: Factor of all channels and hidden units.
        dropout: Probability of dropout before every fully connected layer.
        batch_norm: Whether batch normalization precedes every activation.
    """
    channels, *sides = image_shape("lenet5", input_shape)
    first, second, *hidden = (scale_channels(width, width_multiplier) for width in (6, 16, 120, 84))
    normalization = "none"
    if batch_norm:
        normalization = "batch"
    padding = 0
    if min(sides) < 32:
        padding = 2
    layers: Layers = {
        **convolution(
            "conv1", channels, first, kernel_size=5, padding=padding, normalization=normalization
        ),
        "conv1_pool": nn.MaxPool2d(2),
        **convolution(
            "conv2", first, second, kernel_size=5, padding=0, normalization=normalization
        ),
        "conv2_pool": nn.MaxPool2d(2),
    }
    features = n_features("lenet5", layers, second, sides)
    return layers | fully_connected_head(
        features,
        hidden,
        n_outputs,
        dropout=dropout,
        output_dropout=dropout,
        normalization=normalization,
    )


def mobilenet(
    input_shape: Sequence[int],
    n_outputs: int,
    *,
    width_multiplier: float = 1.0,
    normalization: str = "batch",
) -> Layers:
    """Build MobileNet: 13 blocks of a depthwise 3 x 3 and a pointwise 1 x 1 convolution.

    Howard et al. 2017, with stride 1 in the first convolution, so that the last feature maps of 32 x 32 images are
    2 x 2. Zhao, Zhang, Hu 2022 use it on CIFAR-100; they ablate the 1024 outputs of `block13_pointwise_relu`.
    """
    in_channels, *_ = image_shape("mobilenet", input_shape)
    bias = normalization == "none"
    channels = scale_channels(32, width_multiplier)
    layers = convolution("conv1", in_channels, channels, bias=bias, normalization=normalization)
    for block, (full_width, stride) in enumerate(_MOBILENET_BLOCKS, start=1):
        width = scale_channels(full_width, width_multiplier)
        name = f"block{block}_depthwise"
        layers |= convolution(
            name,
            channels,
            channels,
            stride=stride,
            groups=channels,
            bias=bias,
            normalization=normalization,
        )
        name = f"block{block}_pointwise"
        layers |= convolution(
            name, channels, width, kernel_size=1, padding=0, bias=bias, normalization=normalization
        )
        channels = width
    return layers | pooled_head(channels, n_outputs)


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
) -> Layers:
    """Build a network of `n_conv` unpadded 3 x 3 convolutions and one hidden layer.

    The "m-layer CNN" of Forouzesh et al. 2021 (arXiv 2007.15378), Fig. 2, where `channels` = (`hidden` - 100) / 20 + 5
    with `hidden` = 100, 120, ..., 480. Its Fig. 2(e) does not state the order of layers; here it is convolution, batch
    normalization, ReLU, dropout, pooling.

    Args:
        input_shape: Shape of one sample, (channels, height, width) for convolutional networks.
        n_outputs: Number of outputs (classes, or regression targets).
        n_conv: Number of convolutions.
        channels: Channels of every convolution.
        hidden: Units of the hidden fully connected layer.
        dropout: Probability of dropout after every ReLU.
        batch_norm: Whether batch normalization precedes every activation.
        max_pool: Whether 2 x 2 max-pooling follows every convolution.
    """
    in_channels, *sides = image_shape("plain_cnn", input_shape)
    normalization = "none"
    if batch_norm:
        normalization = "batch"
    layers: Layers = {}
    for i in range(1, n_conv + 1):
        layers |= convolution(
            f"conv{i}", in_channels, channels, padding=0, normalization=normalization
        )
        layers |= dropout_layers(f"conv{i}", dropout)
        if max_pool:
            layers[f"conv{i}_pool"] = nn.MaxPool2d(2)
        in_channels = channels
    features = n_features("plain_cnn", layers, channels, sides)
    layers["flatten"] = nn.Flatten()
    layers |= dense("fc1", features, hidden, normalization=normalization)
    layers |= dropout_layers("fc1", dropout)
    return layers | {"output": nn.Linear(hidden, n_outputs)}


def small_cnn(
    input_shape: Sequence[int],
    n_outputs: int,
    *,
    width_multiplier: float = 1.0,
    depth: int = 3,
    dropout: float = 0.0,
    batch_norm: bool = False,
) -> Layers:
    """Build conv32-conv64-pool-conv64-pool-fc128 (depth 3).

    Convolutions are 3 x 3 and preserve the size of the image. The first has 32 channels, all later ones 64; 2 x 2
    max-pooling follows each of the last two.

    Args:
        input_shape: Shape of one sample, (channels, height, width) for convolutional networks.
        n_outputs: Number of outputs (classes, or regression targets).
        width_multiplier: Factor of all channels and hidden units.
        depth: Number of convolutions.
        dropout: Probability of dropout before both fully connected layers.
        batch_norm: Whether batch normalization precedes every activation.
    """
    channels, *sides = image_shape("small_cnn", input_shape)
    normalization = "none"
    if batch_norm:
        normalization = "batch"
    layers: Layers = {}
    for i in range(1, depth + 1):
        width = scale_channels(32 if i == 1 else 64, width_multiplier)
        layers |= convolution(f"conv{i}", channels, width, normalization=normalization)
        if i > depth - 2:
            layers[f"conv{i}_pool"] = nn.MaxPool2d(2)
        channels = width
    features = n_features("small_cnn", layers, channels, sides)
    hidden = [scale_channels(128, width_multiplier)]
    return layers | fully_connected_head(
        features,
        hidden,
        n_outputs,
        dropout=dropout,
        output_dropout=dropout,
        normalization=normalization,
    )


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
) -> Layers:
    """Build VGG with five blocks of 3 x 3 convolutions with 64-128-256-512-512 channels.

    The head "linear" is one linear layer, as in Forouzesh et al. 2021 (arXiv 2007.15378); the head "paper" has two
    hidden layers of 4096 units, as in Simonyan and Zisserman 2015 and in Zhao, Zhang, Hu 2022, who ablate the 512
    outputs of `block5_conv3_relu`. Without max-pooling the last convolution of each block has stride 2.

    Args:
        n_layers: Number of weight layers: 11, 13, 16 or 19.
        input_shape: Shape of one sample, (channels, height, width) for convolutional networks.
        n_outputs: Number of outputs (classes, or regression targets).
        width_multiplier: Factor of all channels and hidden units.
        head: "linear" or "paper".
        head_width: Units of both hidden layers of the head "paper".
        dropout: Probability of dropout before every fully connected layer.
        batch_norm: Whether batch normalization precedes every activation.
        max_pool: Whether 2 x 2 max-pooling ends every block.
    """
    channels, *sides = image_shape(f"vgg{n_layers}", input_shape)
    normalization = "none"
    if batch_norm:
        normalization = "batch"
    layers: Layers = {}
    for block, (n_convolutions, full_width) in enumerate(
        zip(_VGG_CONVOLUTIONS[n_layers], _VGG_CHANNELS, strict=True), start=1
    ):
        width = scale_channels(full_width, width_multiplier)
        for i in range(1, n_convolutions + 1):
            stride = 1
            if i == n_convolutions and not max_pool:
                stride = 2
            name = f"block{block}_conv{i}"
            layers |= convolution(name, channels, width, stride=stride, normalization=normalization)
            channels = width
        if max_pool:
            layers[f"block{block}_pool"] = nn.MaxPool2d(2)
    features = n_features(f"vgg{n_layers}", layers, channels, sides)
    hidden = []
    if head == "paper":
        hidden = [head_width] * 2
    return layers | fully_connected_head(
        features, hidden, n_outputs, dropout=dropout, output_dropout=dropout
    )
