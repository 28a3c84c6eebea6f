from __future__ import annotations

import pytest
import torch
from torch import nn

from gapscope.base.errors import InvalidInput
from gapscope.networks.factory import build_network


def test_parameter_count() -> None:
    # convolutions 896 + 9,248 + 18,496 + 36,928; 16 * 16 * 64 features -> 512 -> 10: 8,389,120 + 5,130
    network = build_network("conv6", input_shape=(3, 32, 32), n_outputs=10, normalization="none")
    assert sum(p.numel() for p in network.parameters()) == 8_459_818


def test_normalization_follows_every_convolution_and_the_hidden_layer() -> None:
    network = build_network("conv6", input_shape=(1, 8, 8), n_outputs=10)
    children = dict(network.named_children())
    order = list(children)
    norms = [name for name in order if isinstance(children[name], nn.BatchNorm1d | nn.BatchNorm2d)]
    assert norms == ["conv1_norm", "conv2_norm", "conv3_norm", "conv4_norm", "fc1_norm"]
    assert all(order[order.index(name) + 1] == name.replace("norm", "relu") for name in norms)
    assert order[-7:] == ["conv4_relu", "pool", "flatten", "fc1", "fc1_norm", "fc1_relu", "output"]


def test_images_too_small_are_refused() -> None:
    assert build_network("conv6", input_shape=(1, 2, 2), n_outputs=2)(torch.zeros(2, 1, 2, 2)).shape == (2, 2)
    with pytest.raises(InvalidInput, match="conv6 needs images of at least 2 x 2 pixels; got 1 x 1"):
        build_network("conv6", input_shape=(1, 1, 1), n_outputs=2)
