from __future__ import annotations

import pytest
import torch
from torch import nn

from gapscope.base.errors import InvalidInput
from gapscope.networks.factory import build_network


@pytest.mark.parametrize(
    ("n_layers", "parameters"), [(11, 9_231_114), (13, 9_416_010), (16, 14_728_266), (19, 20_040_522)]
)
def test_parameter_counts_with_batch_norm_and_one_linear_layer(n_layers: int, parameters: int) -> None:
    network = build_network(f"vgg{n_layers}", input_shape=(3, 32, 32), n_outputs=10)
    assert sum(p.numel() for p in network.parameters()) == parameters
    assert sum(isinstance(m, nn.Conv2d) for m in network.modules()) == n_layers - 3


@pytest.mark.parametrize(("batch_norm", "parameters"), [(False, 34_006_948), (True, 34_015_396)])
def test_parameter_counts_of_the_sparsity_paper(batch_norm: bool, parameters: int) -> None:
    # 13 convolutions 14,714,688; head 512 -> 4096 -> 4096 -> 100 (CIFAR-100) 19,292,260; batch norm 2 * 4,224
    network = build_network("vgg16", input_shape=(3, 32, 32), n_outputs=100, head="paper", batch_norm=batch_norm)
    assert sum(p.numel() for p in network.parameters()) == parameters


def test_dropout_of_the_paper_head() -> None:
    network = build_network("vgg11", input_shape=(3, 32, 32), n_outputs=10, head="paper", head_width=8, dropout=0.3)
    children = [name for name, _ in network.named_children()]
    assert children[children.index("flatten") :] == [
        "flatten", "fc1_dropout", "fc1", "fc1_relu", "fc2_dropout", "fc2", "fc2_relu", "output_dropout", "output",
    ]  # fmt: skip


def test_the_ablated_layer_of_vgg16() -> None:
    network = build_network("vgg16", input_shape=(3, 32, 32), n_outputs=10, batch_norm=False)
    children = [name for name, _ in network.named_children()]
    assert children[children.index("block5_conv3") :] == [
        "block5_conv3", "block5_conv3_relu", "block5_pool", "flatten", "output",
    ]  # fmt: skip
    assert network.get_parameter("block5_conv3.weight").shape[0] == 512


def test_strides_replace_pooling() -> None:
    network = build_network("vgg13", input_shape=(3, 32, 32), n_outputs=10, max_pool=False, width_multiplier=0.1)
    strides = [m.stride[0] for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert strides == [1, 2] * 5
    assert not any(isinstance(m, nn.MaxPool2d) for m in network.modules())
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_images_too_small_are_refused() -> None:
    with pytest.raises(InvalidInput, match="vgg11 needs images of at least 32 x 32 pixels; got 28 x 28"):
        build_network("vgg11", input_shape=(1, 28, 28), n_outputs=10)
