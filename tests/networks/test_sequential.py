from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from gapscope.base.errors import InvalidInput
from gapscope.networks.factory import build_network
from gapscope.networks.layers import n_features, normalization_layers
from gapscope.networks.resnet import PaddedShortcut

CIFAR, MNIST, TINY = (3, 32, 32), (1, 28, 28), (1, 8, 8)
COUNTS: list[tuple[str, tuple[int, ...], dict[str, Any], int]] = [
    # the smallest and largest of the sensitivity paper's Fig. 2(a), and its 450k example
    ("fully_connected", CIFAR, {"n_hidden": 2, "width": 100}, 318_410),
    ("fully_connected", CIFAR, {"n_hidden": 2, "width": 480}, 1_710_730),
    ("fully_connected", CIFAR, {"n_hidden": 3, "width": 140}, 471_110),
    ("fully_connected", CIFAR, {"n_hidden": 0, "width": 100}, 30_730),
    # convolutions 2,251,584 (three channels), head 1024 or 256 -> 4096 -> 4096 -> 10
    ("alexnet", CIFAR, {}, 23_272_266),
    ("alexnet", MNIST, {}, 20_125_386),
    # convolutions 896 + 9,248 + 18,496 + 36,928; 16 * 16 * 64 features -> 512 -> 10: 8,389,120 + 5,130
    ("conv6", CIFAR, {"normalization": "none"}, 8_459_818),
    # 28 x 28 padded and 32 x 32 give 16 * 5 * 5 features, 96 x 96 (facial keypoints) 16 * 21 * 21
    ("lenet5", MNIST, {}, 61_706),
    ("lenet5", (1, 32, 32), {}, 61_706),
    ("lenet5", (1, 96, 96), {"n_outputs": 30}, 862_126),
    ("mobilenet", CIFAR, {}, 3_217_226),
    # the sensitivity paper's 1-conv networks go "from 450k to 10M"; 4 convolutions leave 24 x 24
    ("plain_cnn", CIFAR, {"n_conv": 1, "channels": 5, "hidden": 100}, 451_250),
    ("plain_cnn", CIFAR, {"n_conv": 1, "channels": 24, "hidden": 480}, 10_373_962),
    ("plain_cnn", CIFAR, {"n_conv": 4, "channels": 5, "hidden": 100}, 289_940),
    # conv 320 + 18,496 + 36,928, fc 256 -> 128 -> 10: 32,896 + 1,290
    ("small_cnn", TINY, {}, 89_930),
    # He et al. 2016, Table 6: 0.27 million, here with the shortcut without parameters
    ("resnet20", CIFAR, {}, 269_722),
    ("resnet20", MNIST, {}, 269_434),
    ("resnet18", CIFAR, {}, 11_173_962),
    ("resnet34", CIFAR, {}, 21_282_122),
    ("vgg11", CIFAR, {}, 9_231_114),
    ("vgg13", CIFAR, {}, 9_416_010),
    ("vgg16", CIFAR, {}, 14_728_266),
    ("vgg19", CIFAR, {}, 20_040_522),
    # 13 convolutions 14,714,688; head 512 -> 4096 -> 4096 -> 100 (CIFAR-100) 19,292,260; batch norm 2 * 4,224
    ("vgg16", CIFAR, {"n_outputs": 100, "head": "paper", "batch_norm": False}, 34_006_948),
    ("vgg16", CIFAR, {"n_outputs": 100, "head": "paper", "batch_norm": True}, 34_015_396),
]
ORDERS: list[tuple[str, tuple[int, ...], dict[str, Any], str]] = [
    ("fully_connected", (4,), {"n_hidden": 1, "batch_norm": True, "dropout": 0.5},
     "flatten fc1 fc1_norm fc1_relu fc1_dropout output"),
    ("alexnet", CIFAR, {"head_width": 8},
     "conv1 conv1_relu conv1_pool conv2 conv2_relu conv2_pool conv3 conv3_relu conv4 conv4_relu conv5 conv5_relu "
     "conv5_pool flatten fc1_dropout fc1 fc1_relu fc2_dropout fc2 fc2_relu output"),
    ("conv6", TINY, {},
     "conv1 conv1_norm conv1_relu conv2 conv2_norm conv2_relu conv3 conv3_norm conv3_relu conv4 conv4_norm conv4_relu "
     "pool flatten fc1 fc1_norm fc1_relu output"),
    ("lenet5", MNIST, {"dropout": 0.2, "batch_norm": True},
     "conv1 conv1_norm conv1_relu conv1_pool conv2 conv2_norm conv2_relu conv2_pool flatten fc1_dropout fc1 fc1_norm "
     "fc1_relu fc2_dropout fc2 fc2_norm fc2_relu output_dropout output"),
    ("plain_cnn", TINY, {"n_conv": 1, "dropout": 0.5, "batch_norm": True, "max_pool": True},
     "conv1 conv1_norm conv1_relu conv1_dropout conv1_pool flatten fc1 fc1_norm fc1_relu fc1_dropout output"),
    ("small_cnn", TINY, {"depth": 3},
     "conv1 conv1_relu conv2 conv2_relu conv2_pool conv3 conv3_relu conv3_pool flatten fc1 fc1_relu output"),
    ("vgg11", CIFAR, {"head": "paper", "head_width": 8, "dropout": 0.3},
     "block5_pool flatten fc1_dropout fc1 fc1_relu fc2_dropout fc2 fc2_relu output_dropout output"),
    ("vgg16", CIFAR, {"batch_norm": False}, "block5_conv3 block5_conv3_relu block5_pool flatten output"),
]  # fmt: skip


def build(name: str, input_shape: tuple[int, ...], **options: Any) -> nn.Module:
    return build_network(name, input_shape=input_shape, **{"n_outputs": 10, **options})


@pytest.mark.parametrize(("name", "input_shape", "options", "parameters"), COUNTS)
def test_parameter_counts(
    name: str, input_shape: tuple[int, ...], options: dict[str, Any], parameters: int
) -> None:
    network = build(name, input_shape, **options)
    assert sum(p.numel() for p in network.parameters()) == parameters
    assert network.eval()(torch.zeros(1, *input_shape)).shape == (1, options.get("n_outputs", 10))
    if name.startswith("vgg") and not options:
        assert (
            sum(isinstance(m, nn.Conv2d) for m in network.modules())
            == int(name.removeprefix("vgg")) - 3
        )


@pytest.mark.parametrize(("name", "input_shape", "options", "order"), ORDERS)
def test_order_of_layers(
    name: str, input_shape: tuple[int, ...], options: dict[str, Any], order: str
) -> None:
    network, layers = build(name, input_shape, **options), order.split()
    assert [child for child, _ in network.named_children()][-len(layers) :] == layers
    assert layers[0].startswith("block5") or len(layers) == len(list(network.children()))
    assert network(torch.zeros(2, *input_shape)).shape == (2, 10)
    for child, layer in network.named_children():
        if child.endswith("dropout"):
            assert isinstance(layer, nn.Dropout) and layer.p == options.get("dropout", 0.5)
        if child == "fc1_norm":
            assert isinstance(layer, nn.BatchNorm1d)


def test_fully_connected_against_a_product_of_matrices() -> None:
    network = build(
        "fully_connected", (3, 2), n_outputs=2, n_hidden=2, width=5, activation="tanh"
    ).double()
    x = torch.randn(4, 3, 2, dtype=torch.float64)
    h = x.reshape(4, 6)
    for name in ("fc1", "fc2"):
        h = torch.tanh(
            h @ network.get_parameter(f"{name}.weight").T + network.get_parameter(f"{name}.bias")
        )
    expected = h @ network.get_parameter("output.weight").T + network.get_parameter("output.bias")
    torch.testing.assert_close(network(x), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("name", "options", "strides"),
    [
        ("alexnet", {"head_width": 8}, [4, 2, 1, 1, 2]),
        ("vgg13", {"width_multiplier": 0.1}, [1, 2] * 5),
    ],
)
def test_strides_replace_pooling(name: str, options: dict[str, Any], strides: list[int]) -> None:
    network = build(name, CIFAR, max_pool=False, **options)
    assert [m.stride[0] for m in network.modules() if isinstance(m, nn.Conv2d)] == strides
    assert not any(isinstance(m, nn.MaxPool2d) for m in network.modules())
    assert network(torch.zeros(2, *CIFAR)).shape == (2, 10)
    if name == "alexnet":
        assert network.get_parameter("fc1.weight").shape == (8, 256 * 2 * 2)


@pytest.mark.parametrize(
    ("name", "smallest", "input_shape", "options"),
    [
        ("alexnet", 15, TINY, {}),
        ("conv6", 2, (1, 1, 1), {}),
        ("lenet5", 12, TINY, {}),
        ("plain_cnn", 46, CIFAR, {"max_pool": True}),
        ("small_cnn", 4, (1, 3, 8), {}),
        ("vgg11", 32, MNIST, {}),
    ],
)
def test_images_too_small(
    name: str, smallest: int, input_shape: tuple[int, ...], options: dict[str, Any]
) -> None:
    facts = rf"^{name} needs .* {smallest} x {smallest} pixels; got {input_shape[1]} x {input_shape[2]}\. "
    with pytest.raises(InvalidInput, match=facts):
        build(name, input_shape, **options)
    assert build(name, (1, smallest, smallest), **options)(
        torch.zeros(2, 1, smallest, smallest)
    ).shape == (2, 10)


def test_a_block_is_the_relu_of_branch_plus_shortcut() -> None:
    network = (
        build_network("resnet18", input_shape=(3, 8, 8), n_outputs=10, width_multiplier=0.1)
        .double()
        .eval()
    )
    block = network.get_submodule("stage2_block1")
    p = {**dict(block.named_parameters()), **dict(block.named_buffers())}
    x = torch.rand(2, 6, 8, 8, dtype=torch.float64)

    def normalized(name: str, x: torch.Tensor) -> torch.Tensor:
        keys = (f"{name}_norm.{key}" for key in ("running_mean", "running_var", "weight", "bias"))
        return functional.batch_norm(x, *(p[key] for key in keys))

    h = functional.conv2d(x, p["branch.conv1.weight"], stride=2, padding=1)
    h = functional.conv2d(normalized("branch.conv1", h).relu(), p["branch.conv2.weight"], padding=1)
    shortcut = normalized(
        "shortcut.conv", functional.conv2d(x, p["shortcut.conv.weight"], stride=2)
    )
    expected = (normalized("branch.conv2", h) + shortcut).relu()
    torch.testing.assert_close(block(x), expected, rtol=0, atol=1e-14)


def test_padded_shortcut() -> None:
    x = torch.arange(32.0).reshape(1, 2, 4, 4)
    y = PaddedShortcut(5, 2)(x)
    assert y.shape == (1, 5, 2, 2)
    assert torch.equal(y[:, 1:3], x[:, :, ::2, ::2])
    assert not y[:, [0, 3, 4]].any()


@pytest.mark.parametrize(
    ("normalization", "kind"), [("batch", nn.BatchNorm2d), ("group", nn.GroupNorm)]
)
def test_normalization_and_biases(normalization: str, kind: type[nn.Module]) -> None:
    network = build_network(
        "resnet18",
        input_shape=(3, 8, 8),
        n_outputs=2,
        width_multiplier=0.1,
        normalization=normalization,
    )
    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    assert sum(isinstance(module, kind) for module in network.modules()) == len(convolutions) == 20
    assert all(convolution.bias is None for convolution in convolutions)


def test_group_norm_keeps_samples_independent_in_training_mode() -> None:
    x = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    for normalization, is_independent in (("group", True), ("batch", False)):
        network = build_network(
            "resnet20", input_shape=(1, 8, 8), n_outputs=3, normalization=normalization
        ).train()
        assert torch.allclose(network(x)[:2], network(x[:2]), atol=1e-6) is is_independent


def test_group_norm_fits_every_number_of_channels() -> None:
    groups = {}
    for channels in (1, 5, 12, 16, 64):
        (layer,) = normalization_layers("conv1", channels, "group").values()
        assert isinstance(layer, nn.GroupNorm)
        groups[channels] = layer.num_groups
    assert groups == {1: 1, 5: 1, 12: 4, 16: 8, 64: 8}


def test_number_of_features_is_that_of_the_layers() -> None:
    layers: dict[str, nn.Module] = {
        "conv1": nn.Conv2d(1, 3, 5, stride=3, padding=1),
        "pool": nn.MaxPool2d(3, stride=2, padding=1),
        "conv2": nn.Conv2d(3, 2, (2, 2)),
    }
    x = torch.zeros(1, 1, 23, 40)
    assert n_features("test", layers, 2, (23, 40)) == nn.Sequential(*layers.values())(x).numel()
