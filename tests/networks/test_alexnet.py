from __future__ import annotations

import pytest
import torch
from torch import nn

from gapscope.base.errors import InvalidInput
from gapscope.networks.factory import build_network


@pytest.mark.parametrize(
    ("input_shape", "parameters"),
    # convolutions 2,251,584 (three channels), head 1024 or 256 -> 4096 -> 4096 -> 10
    [((3, 32, 32), 23_272_266), ((1, 28, 28), 20_125_386)],
)
def test_parameter_counts(input_shape: tuple[int, int, int], parameters: int) -> None:
    network = build_network("alexnet", input_shape=input_shape, n_outputs=10)
    assert sum(p.numel() for p in network.parameters()) == parameters


def test_places_of_dropout_and_pooling() -> None:
    network = build_network("alexnet", input_shape=(3, 32, 32), n_outputs=10, head_width=8)
    assert [name for name, _ in network.named_children()] == [
        "conv1", "conv1_relu", "conv1_pool", "conv2", "conv2_relu", "conv2_pool", "conv3", "conv3_relu",
        "conv4", "conv4_relu", "conv5", "conv5_relu", "conv5_pool",
        "flatten", "fc1_dropout", "fc1", "fc1_relu", "fc2_dropout", "fc2", "fc2_relu", "output",
    ]  # fmt: skip
    dropout = network.get_submodule("fc1_dropout")
    assert isinstance(dropout, nn.Dropout) and dropout.p == 0.5


def test_strides_replace_pooling() -> None:
    network = build_network("alexnet", input_shape=(3, 32, 32), n_outputs=10, head_width=8, max_pool=False)
    strides = {name: m.stride[0] for name, m in network.named_children() if isinstance(m, nn.Conv2d)}
    assert strides == {"conv1": 4, "conv2": 2, "conv3": 1, "conv4": 1, "conv5": 2}
    assert network.get_parameter("fc1.weight").shape == (8, 256 * 2 * 2)
    assert network(torch.zeros(1, 3, 32, 32)).shape == (1, 10)


def test_the_width_multiplier_leaves_the_head() -> None:
    network = build_network("alexnet", input_shape=(3, 32, 32), n_outputs=10, head_width=8, width_multiplier=0.25)
    assert network.get_parameter("conv5.weight").shape == (64, 64, 3, 3)
    assert network.get_parameter("fc2.weight").shape == (8, 8)


def test_images_too_small_are_refused() -> None:
    with pytest.raises(InvalidInput, match="alexnet needs images of at least 15 x 15 pixels; got 8 x 8"):
        build_network("alexnet", input_shape=(1, 8, 8), n_outputs=10)
