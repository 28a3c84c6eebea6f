"""Weight normalization: same function at first, lengths and biases from data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from batch_norm.some_networks import Residual, images, warmed_up
from gapscope.base.errors import InvalidInput, NotMeasurable
from gapscope.batch_norm.layers.weight import initialize_from_data, weight_normalize


def test_the_function_is_kept_and_the_length_is_free() -> None:
    network: Any = warmed_up(Residual().double())
    x = images(5).inputs
    before = network(x)
    normalized = weight_normalize(network)
    torch.testing.assert_close(normalized(x), before)
    layer = network.fc
    g, v = layer.parametrizations.weight.original0, layer.parametrizations.weight.original1
    torch.testing.assert_close(layer.weight, g * v / v.norm(dim=1, keepdim=True))
    assert weight_normalize(network) is network  # a second time changes nothing
    torch.testing.assert_close(network(x), before)


def test_errors() -> None:
    with pytest.raises(InvalidInput, match=r"got 'conv3'. Did you mean 'conv"):
        weight_normalize(Residual(), layers=["conv3"])
    with pytest.raises(NotMeasurable, match="must hold linear or convolutional layers; it holds none"):
        weight_normalize(nn.ReLU())
    empty = nn.Linear(2, 3)
    nn.init.zeros_(empty.weight)
    with pytest.raises(InvalidInput, match="must have a direction; 3 of its channels are all zero"):
        weight_normalize(empty)
    with pytest.raises(NotMeasurable, match=r"use weight_normalize\(network\) first"):
        initialize_from_data(nn.Linear(2, 2), torch.zeros(3, 2))


def test_initialization_from_data_standardizes_every_layer() -> None:
    network: Any = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Conv2d(4, 5, 3), nn.Flatten(), nn.Linear(20, 6), nn.Linear(6, 2, bias=False)
    )
    network = weight_normalize(network.double())
    x = images(64).inputs
    initialize_from_data(network, x, generator=torch.Generator().manual_seed(1))
    direction = network[0].parametrizations.weight.original1
    assert 0.03 < direction.std() < 0.07
    for module in network:
        x = module(x)
        if isinstance(module, nn.Conv2d) or (isinstance(module, nn.Linear) and module.bias is not None):
            channels = x.transpose(0, 1).flatten(1)
            torch.testing.assert_close(channels.mean(1), torch.zeros(len(channels), dtype=torch.float64))
            torch.testing.assert_close(channels.std(1, unbiased=False), torch.ones(len(channels), dtype=torch.float64))
    torch.testing.assert_close(x.std(0, unbiased=False), torch.ones(2, dtype=torch.float64))


def test_a_constant_channel_keeps_length_one() -> None:
    layer: Any = initialize_from_data(weight_normalize(nn.Linear(2, 1)), torch.ones(4, 2))
    assert layer.parametrizations.weight.original0.item() == 1.0 and layer(torch.ones(4, 2)).abs().max() < 1e-6
