from __future__ import annotations

import pytest
import torch

from gapscope.base.errors import InvalidInput
from gapscope.networks.factory import build_network


@pytest.mark.parametrize(
    ("n_conv", "channels", "hidden", "parameters"),
    # CIFAR-10; the sensitivity paper's 1-conv networks go "from 450k to 10M"; 4 convolutions leave 24 x 24
    [(1, 5, 100, 451_250), (1, 24, 480, 10_373_962), (4, 5, 100, 289_940)],
)
def test_parameter_counts_of_the_paper(n_conv: int, channels: int, hidden: int, parameters: int) -> None:
    network = build_network(
        "plain_cnn", input_shape=(3, 32, 32), n_outputs=10, n_conv=n_conv, channels=channels, hidden=hidden
    )
    assert sum(p.numel() for p in network.parameters()) == parameters


def test_order_of_layers() -> None:
    options = {"n_conv": 1, "dropout": 0.5, "batch_norm": True, "max_pool": True}
    network = build_network("plain_cnn", input_shape=(1, 8, 8), n_outputs=2, **options)
    assert [name for name, _ in network.named_children()] == [
        "conv1", "conv1_norm", "conv1_relu", "conv1_dropout", "conv1_pool",
        "flatten", "fc1", "fc1_norm", "fc1_relu", "fc1_dropout", "output",
    ]  # fmt: skip
    assert network(torch.zeros(2, 1, 8, 8)).shape == (2, 2)


def test_images_too_small_are_refused() -> None:
    with pytest.raises(InvalidInput, match="plain_cnn needs images of at least 46 x 46 pixels; got 32 x 32"):
        build_network("plain_cnn", input_shape=(3, 32, 32), n_outputs=10, max_pool=True)
