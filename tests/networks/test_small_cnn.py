from __future__ import annotations

import pytest
import torch
from torch import nn

from gapscope.base.errors import InvalidInput
from gapscope.networks.factory import build_network


def test_parameter_count_and_ablated_layer_of_the_digits_network() -> None:
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
def test_depth(depth: int, layers: list[str]) -> None:
    network = build_network("small_cnn", input_shape=(1, 8, 8), n_outputs=10, depth=depth)
    assert [name for name, _ in network.named_children()] == [*layers, "flatten", "fc1", "fc1_relu", "output"]
    assert network(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_images_too_small_are_refused() -> None:
    with pytest.raises(InvalidInput, match="small_cnn needs images of at least 4 x 4 pixels; got 3 x 8"):
        build_network("small_cnn", input_shape=(1, 3, 8), n_outputs=10)
