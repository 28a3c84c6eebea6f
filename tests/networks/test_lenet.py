from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from gapscope.base.errors import InvalidInput
from gapscope.networks.factory import build_network


@pytest.mark.parametrize(
    ("input_shape", "n_outputs", "parameters"),
    # 28 x 28 padded and 32 x 32 give 16 * 5 * 5 features, 96 x 96 (facial keypoints) 16 * 21 * 21
    [((1, 28, 28), 10, 61_706), ((1, 32, 32), 10, 61_706), ((3, 32, 32), 10, 62_006), ((1, 96, 96), 30, 862_126)],
)
def test_parameter_counts(input_shape: tuple[int, int, int], n_outputs: int, parameters: int) -> None:
    network = build_network("lenet5", input_shape=input_shape, n_outputs=n_outputs)
    assert sum(p.numel() for p in network.parameters()) == parameters
    assert network(torch.zeros(1, *input_shape)).shape == (1, n_outputs)


def test_against_the_functional_form() -> None:
    network = build_network("lenet5", input_shape=(1, 28, 28), n_outputs=10).double()
    p = dict(network.named_parameters())
    x = torch.randn(3, 1, 28, 28, dtype=torch.float64)
    h = functional.max_pool2d(functional.conv2d(x, p["conv1.weight"], p["conv1.bias"], padding=2).relu(), 2)
    h = functional.max_pool2d(functional.conv2d(h, p["conv2.weight"], p["conv2.bias"]).relu(), 2).flatten(1)
    for name in ("fc1", "fc2"):
        h = functional.linear(h, p[f"{name}.weight"], p[f"{name}.bias"]).relu()
    expected = functional.linear(h, p["output.weight"], p["output.bias"])
    torch.testing.assert_close(network(x), expected, rtol=0, atol=1e-14)


def test_places_of_dropout_and_batch_norm() -> None:
    network = build_network("lenet5", input_shape=(1, 28, 28), n_outputs=10, dropout=0.2, batch_norm=True)
    assert [name for name, _ in network.named_children()] == [
        "conv1", "conv1_norm", "conv1_relu", "conv1_pool", "conv2", "conv2_norm", "conv2_relu", "conv2_pool",
        "flatten", "fc1_dropout", "fc1", "fc1_norm", "fc1_relu", "fc2_dropout", "fc2", "fc2_norm", "fc2_relu",
        "output_dropout", "output",
    ]  # fmt: skip
    assert isinstance(network.get_submodule("fc1_norm"), nn.BatchNorm1d)


def test_the_smallest_image_that_works() -> None:
    assert build_network("lenet5", input_shape=(1, 12, 12), n_outputs=2)(torch.zeros(1, 1, 12, 12)).shape == (1, 2)
    with pytest.raises(InvalidInput, match=r"^lenet5 needs images of at least 12 x 12 pixels; got 8 x 8\. Enlarge or"):
        build_network("lenet5", input_shape=(1, 8, 8), n_outputs=10)


def test_rectangular_images() -> None:
    assert build_network("lenet5", input_shape=(1, 20, 40), n_outputs=2)(torch.zeros(1, 1, 20, 40)).shape == (1, 2)


def test_data_that_are_no_images_are_refused() -> None:
    with pytest.raises(
        InvalidInput, match=r"lenet5 needs images, input_shape \(channels, height, width\); got \(13,\)"
    ):
        build_network("lenet5", input_shape=(13,), n_outputs=1)
