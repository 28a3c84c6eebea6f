from __future__ import annotations

import torch
from torch import nn

from gapscope.networks.factory import build_network


def test_parameter_count_and_shapes() -> None:
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


def test_depthwise_convolutions_look_at_one_channel_each() -> None:
    network = build_network("mobilenet", input_shape=(3, 32, 32), n_outputs=10, width_multiplier=0.25)
    for name, layer in network.named_children():
        if name.endswith("depthwise"):
            assert isinstance(layer, nn.Conv2d)
            assert layer.groups == layer.in_channels == layer.out_channels
            assert layer.weight.shape[1:] == (1, 3, 3)
