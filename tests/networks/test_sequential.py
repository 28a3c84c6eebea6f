"""Sequential networks: parameter counts of the papers, order of layers, outputs."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from gapscope.base.errors import InvalidInput
from gapscope.networks.factory import build_network


@pytest.mark.parametrize(
    ("n_hidden", "width", "parameters"),
    # CIFAR-10 images; the smallest and largest of the sensitivity paper's Fig. 2(a), and its 450k example
    [(2, 100, 318_410), (2, 480, 1_710_730), (2, 140, 451_370), (3, 140, 471_110), (0, 100, 30_730)],
)
def test_parameter_counts_of_the_paper(n_hidden: int, width: int, parameters: int) -> None:
    network = build_network("fully_connected", input_shape=(3, 32, 32), n_outputs=10, n_hidden=n_hidden, width=width)
    assert sum(p.numel() for p in network.parameters()) == parameters


def test_order_of_layers() -> None:
    network = build_network("fully_connected", input_shape=(4,), n_outputs=2, n_hidden=1, batch_norm=True, dropout=0.5)
    assert [name for name, _ in network.named_children()] == [
        "flatten", "fc1", "fc1_norm", "fc1_relu", "fc1_dropout", "output",
    ]  # fmt: skip
    assert isinstance(network.get_submodule("fc1_norm"), nn.BatchNorm1d)


def test_against_a_product_of_matrices() -> None:
    network = build_network(
        "fully_connected", input_shape=(3, 2), n_outputs=2, n_hidden=2, width=5, activation="tanh"
    ).double()
    x = torch.randn(4, 3, 2, dtype=torch.float64)
    h = x.reshape(4, 6)
    for name in ("fc1", "fc2"):
        h = torch.tanh(h @ network.get_parameter(f"{name}.weight").T + network.get_parameter(f"{name}.bias"))
    expected = h @ network.get_parameter("output.weight").T + network.get_parameter("output.bias")
    torch.testing.assert_close(network(x), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("input_shape", "parameters"),
    # convolutions 2,251,584 (three channels), head 1024 or 256 -> 4096 -> 4096 -> 10
    [((3, 32, 32), 23_272_266), ((1, 28, 28), 20_125_386)],
)
def test_alexnet_parameter_counts(input_shape: tuple[int, int, int], parameters: int) -> None:
    network = build_network("alexnet", input_shape=input_shape, n_outputs=10)
    assert sum(p.numel() for p in network.parameters()) == parameters


def test_alexnet_places_of_dropout_and_pooling() -> None:
    network = build_network("alexnet", input_shape=(3, 32, 32), n_outputs=10, head_width=8)
    assert [name for name, _ in network.named_children()] == [
        "conv1", "conv1_relu", "conv1_pool", "conv2", "conv2_relu", "conv2_pool", "conv3", "conv3_relu",
        "conv4", "conv4_relu", "conv5", "conv5_relu", "conv5_pool",
        "flatten", "fc1_dropout", "fc1", "fc1_relu", "fc2_dropout", "fc2", "fc2_relu", "output",
    ]  # fmt: skip
    dropout = network.get_submodule("fc1_dropout")
    assert isinstance(dropout, nn.Dropout) and dropout.p == 0.5


def test_alexnet_strides_replace_pooling() -> None:
    network = build_network("alexnet", input_shape=(3, 32, 32), n_outputs=10, head_width=8, max_pool=False)
    strides = {name: m.stride[0] for name, m in network.named_children() if isinstance(m, nn.Conv2d)}
    assert strides == {"conv1": 4, "conv2": 2, "conv3": 1, "conv4": 1, "conv5": 2}
    assert network.get_parameter("fc1.weight").shape == (8, 256 * 2 * 2)
    assert network(torch.zeros(1, 3, 32, 32)).shape == (1, 10)


def test_alexnet_the_width_multiplier_leaves_the_head() -> None:
    network = build_network("alexnet", input_shape=(3, 32, 32), n_outputs=10, head_width=8, width_multiplier=0.25)
    assert network.get_parameter("conv5.weight").shape == (64, 64, 3, 3)
    assert network.get_parameter("fc2.weight").shape == (8, 8)


def test_alexnet_images_too_small_are_refused() -> None:
    with pytest.raises(InvalidInput, match="alexnet needs images of at least 15 x 15 pixels; got 8 x 8"):
        build_network("alexnet", input_shape=(1, 8, 8), n_outputs=10)


def test_conv6_parameter_count() -> None:
    # convolutions 896 + 9,248 + 18,496 + 36,928; 16 * 16 * 64 features -> 512 -> 10: 8,389,120 + 5,130
    network = build_network("conv6", input_shape=(3, 32, 32), n_outputs=10, normalization="none")
    assert sum(p.numel() for p in network.parameters()) == 8_459_818


def test_conv6_normalization_follows_every_convolution_and_the_hidden_layer() -> None:
    network = build_network("conv6", input_shape=(1, 8, 8), n_outputs=10)
    children = dict(network.named_children())
    order = list(children)
    norms = [name for name in order if isinstance(children[name], nn.BatchNorm1d | nn.BatchNorm2d)]
    assert norms == ["conv1_norm", "conv2_norm", "conv3_norm", "conv4_norm", "fc1_norm"]
    assert all(order[order.index(name) + 1] == name.replace("norm", "relu") for name in norms)
    assert order[-7:] == ["conv4_relu", "pool", "flatten", "fc1", "fc1_norm", "fc1_relu", "output"]


def test_conv6_images_too_small_are_refused() -> None:
    assert build_network("conv6", input_shape=(1, 2, 2), n_outputs=2)(torch.zeros(2, 1, 2, 2)).shape == (2, 2)
    with pytest.raises(InvalidInput, match="conv6 needs images of at least 2 x 2 pixels; got 1 x 1"):
        build_network("conv6", input_shape=(1, 1, 1), n_outputs=2)


@pytest.mark.parametrize(
    ("input_shape", "n_outputs", "parameters"),
    # 28 x 28 padded and 32 x 32 give 16 * 5 * 5 features, 96 x 96 (facial keypoints) 16 * 21 * 21
    [((1, 28, 28), 10, 61_706), ((1, 32, 32), 10, 61_706), ((3, 32, 32), 10, 62_006), ((1, 96, 96), 30, 862_126)],
)
def test_lenet_parameter_counts(input_shape: tuple[int, int, int], n_outputs: int, parameters: int) -> None:
    network = build_network("lenet5", input_shape=input_shape, n_outputs=n_outputs)
    assert sum(p.numel() for p in network.parameters()) == parameters
    assert network(torch.zeros(1, *input_shape)).shape == (1, n_outputs)


def test_lenet_against_the_functional_form() -> None:
    network = build_network("lenet5", input_shape=(1, 28, 28), n_outputs=10).double()
    p = dict(network.named_parameters())
    x = torch.randn(3, 1, 28, 28, dtype=torch.float64)
    h = functional.max_pool2d(functional.conv2d(x, p["conv1.weight"], p["conv1.bias"], padding=2).relu(), 2)
    h = functional.max_pool2d(functional.conv2d(h, p["conv2.weight"], p["conv2.bias"]).relu(), 2).flatten(1)
    for name in ("fc1", "fc2"):
        h = functional.linear(h, p[f"{name}.weight"], p[f"{name}.bias"]).relu()
    expected = functional.linear(h, p["output.weight"], p["output.bias"])
    torch.testing.assert_close(network(x), expected, rtol=0, atol=1e-14)


def test_lenet_places_of_dropout_and_batch_norm() -> None:
    network = build_network("lenet5", input_shape=(1, 28, 28), n_outputs=10, dropout=0.2, batch_norm=True)
    assert [name for name, _ in network.named_children()] == [
        "conv1", "conv1_norm", "conv1_relu", "conv1_pool", "conv2", "conv2_norm", "conv2_relu", "conv2_pool",
        "flatten", "fc1_dropout", "fc1", "fc1_norm", "fc1_relu", "fc2_dropout", "fc2", "fc2_norm", "fc2_relu",
        "output_dropout", "output",
    ]  # fmt: skip
    assert isinstance(network.get_submodule("fc1_norm"), nn.BatchNorm1d)


def test_lenet_the_smallest_image_that_works() -> None:
    assert build_network("lenet5", input_shape=(1, 12, 12), n_outputs=2)(torch.zeros(1, 1, 12, 12)).shape == (1, 2)
    with pytest.raises(InvalidInput, match=r"^lenet5 needs images of at least 12 x 12 pixels; got 8 x 8\. Enlarge or"):
        build_network("lenet5", input_shape=(1, 8, 8), n_outputs=10)


def test_lenet_rectangular_images() -> None:
    assert build_network("lenet5", input_shape=(1, 20, 40), n_outputs=2)(torch.zeros(1, 1, 20, 40)).shape == (1, 2)


def test_lenet_data_that_are_no_images_are_refused() -> None:
    with pytest.raises(
        InvalidInput, match=r"lenet5 needs images, input_shape \(channels, height, width\); got \(13,\)"
    ):
        build_network("lenet5", input_shape=(13,), n_outputs=1)


def test_mobilenet_parameter_count_and_shapes() -> None:
    network = build_network("mobilenet", input_shape=(3, 32, 32), n_outputs=10)
    assert sum(p.numel() for p in network.parameters()) == 3_217_226
    shapes: dict[str, torch.Size] = {}
    x = torch.zeros(2, 3, 32, 32)
    for name, layer in network.named_children():
        x = layer(x)
        shapes[name] = x.shape
    assert shapes["conv1"] == (2, 32, 32, 32)
    assert shapes["block13_pointwise_relu"] == (2, 1024, 2, 2)
    assert shapes["output"] == (2, 10)


def test_mobilenet_depthwise_convolutions_look_at_one_channel_each() -> None:
    network = build_network("mobilenet", input_shape=(3, 32, 32), n_outputs=10, width_multiplier=0.25)
    for name, layer in network.named_children():
        if name.endswith("depthwise"):
            assert isinstance(layer, nn.Conv2d)
            assert layer.groups == layer.in_channels == layer.out_channels
            assert layer.weight.shape[1:] == (1, 3, 3)


@pytest.mark.parametrize(
    ("n_conv", "channels", "hidden", "parameters"),
    # CIFAR-10; the sensitivity paper's 1-conv networks go "from 450k to 10M"; 4 convolutions leave 24 x 24
    [(1, 5, 100, 451_250), (1, 24, 480, 10_373_962), (4, 5, 100, 289_940)],
)
def test_plain_cnn_parameter_counts_of_the_paper(n_conv: int, channels: int, hidden: int, parameters: int) -> None:
    network = build_network(
        "plain_cnn", input_shape=(3, 32, 32), n_outputs=10, n_conv=n_conv, channels=channels, hidden=hidden
    )
    assert sum(p.numel() for p in network.parameters()) == parameters


def test_plain_cnn_order_of_layers() -> None:
    options = {"n_conv": 1, "dropout": 0.5, "batch_norm": True, "max_pool": True}
    network = build_network("plain_cnn", input_shape=(1, 8, 8), n_outputs=2, **options)
    assert [name for name, _ in network.named_children()] == [
        "conv1", "conv1_norm", "conv1_relu", "conv1_dropout", "conv1_pool",
        "flatten", "fc1", "fc1_norm", "fc1_relu", "fc1_dropout", "output",
    ]  # fmt: skip
    assert network(torch.zeros(2, 1, 8, 8)).shape == (2, 2)


def test_plain_cnn_images_too_small_are_refused() -> None:
    with pytest.raises(InvalidInput, match="plain_cnn needs images of at least 46 x 46 pixels; got 32 x 32"):
        build_network("plain_cnn", input_shape=(3, 32, 32), n_outputs=10, max_pool=True)


def test_small_cnn_parameter_count_and_ablated_layer_of_the_digits_network() -> None:
    network = build_network("small_cnn", input_shape=(1, 8, 8), n_outputs=10)
    # conv 320 + 18,496 + 36,928, fc 256 -> 128 -> 10: 32,896 + 1,290
    assert sum(p.numel() for p in network.parameters()) == 89_930
    maps: list[torch.Tensor] = []

    def keep(_module: nn.Module, _inputs: object, output: torch.Tensor) -> None:
        maps.append(output)

    network.get_submodule("conv3_relu").register_forward_hook(keep)
    network(torch.zeros(2, 1, 8, 8))
    assert maps[0].shape == (2, 64, 4, 4)


@pytest.mark.parametrize(
    ("depth", "layers"),
    [
        (1, ["conv1", "conv1_relu", "conv1_pool"]),
        (2, ["conv1", "conv1_relu", "conv1_pool", "conv2", "conv2_relu", "conv2_pool"]),
        (3, ["conv1", "conv1_relu", "conv2", "conv2_relu", "conv2_pool", "conv3", "conv3_relu", "conv3_pool"]),
    ],
)
def test_small_cnn_depth(depth: int, layers: list[str]) -> None:
    network = build_network("small_cnn", input_shape=(1, 8, 8), n_outputs=10, depth=depth)
    assert [name for name, _ in network.named_children()] == [*layers, "flatten", "fc1", "fc1_relu", "output"]
    assert network(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_small_cnn_images_too_small_are_refused() -> None:
    with pytest.raises(InvalidInput, match="small_cnn needs images of at least 4 x 4 pixels; got 3 x 8"):
        build_network("small_cnn", input_shape=(1, 3, 8), n_outputs=10)


@pytest.mark.parametrize(
    ("n_layers", "parameters"), [(11, 9_231_114), (13, 9_416_010), (16, 14_728_266), (19, 20_040_522)]
)
def test_vgg_parameter_counts_with_batch_norm_and_one_linear_layer(n_layers: int, parameters: int) -> None:
    network = build_network(f"vgg{n_layers}", input_shape=(3, 32, 32), n_outputs=10)
    assert sum(p.numel() for p in network.parameters()) == parameters
    assert sum(isinstance(m, nn.Conv2d) for m in network.modules()) == n_layers - 3


@pytest.mark.parametrize(("batch_norm", "parameters"), [(False, 34_006_948), (True, 34_015_396)])
def test_vgg_parameter_counts_of_the_sparsity_paper(batch_norm: bool, parameters: int) -> None:
    # 13 convolutions 14,714,688; head 512 -> 4096 -> 4096 -> 100 (CIFAR-100) 19,292,260; batch norm 2 * 4,224
    network = build_network("vgg16", input_shape=(3, 32, 32), n_outputs=100, head="paper", batch_norm=batch_norm)
    assert sum(p.numel() for p in network.parameters()) == parameters


def test_vgg_dropout_of_the_paper_head() -> None:
    network = build_network("vgg11", input_shape=(3, 32, 32), n_outputs=10, head="paper", head_width=8, dropout=0.3)
    children = [name for name, _ in network.named_children()]
    assert children[children.index("flatten") :] == [
        "flatten", "fc1_dropout", "fc1", "fc1_relu", "fc2_dropout", "fc2", "fc2_relu", "output_dropout", "output",
    ]  # fmt: skip


def test_vgg_the_ablated_layer_of_vgg16() -> None:
    network = build_network("vgg16", input_shape=(3, 32, 32), n_outputs=10, batch_norm=False)
    children = [name for name, _ in network.named_children()]
    assert children[children.index("block5_conv3") :] == [
        "block5_conv3", "block5_conv3_relu", "block5_pool", "flatten", "output",
    ]  # fmt: skip
    assert network.get_parameter("block5_conv3.weight").shape[0] == 512


def test_vgg_strides_replace_pooling() -> None:
    network = build_network("vgg13", input_shape=(3, 32, 32), n_outputs=10, max_pool=False, width_multiplier=0.1)
    strides = [m.stride[0] for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert strides == [1, 2] * 5
    assert not any(isinstance(m, nn.MaxPool2d) for m in network.modules())
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_vgg_images_too_small_are_refused() -> None:
    with pytest.raises(InvalidInput, match="vgg11 needs images of at least 32 x 32 pixels; got 28 x 28"):
        build_network("vgg11", input_shape=(1, 28, 28), n_outputs=10)
