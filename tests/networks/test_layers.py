from __future__ import annotations

import torch
from torch import nn

from gapscope.networks.layers import n_features, normalization_layers


def test_group_norm_fits_every_number_of_channels() -> None:
    groups = {}
    for channels in (1, 5, 12, 16, 64):
        (layer,) = normalization_layers("conv1", channels, "group").values()
        assert isinstance(layer, nn.GroupNorm)
        groups[channels] = layer.num_groups
    assert groups == {1: 1, 5: 1, 12: 4, 16: 8, 64: 8}


def test_number_of_features_is_what_the_layers_give() -> None:
    layers: dict[str, nn.Module] = {
        "conv1": nn.Conv2d(1, 3, 5, stride=3, padding=1),
        "pool": nn.MaxPool2d(3, stride=2, padding=1),
        "conv2": nn.Conv2d(3, 2, (2, 2)),
    }
    x = torch.zeros(1, 1, 23, 40)
    assert n_features("test", layers, 2, (23, 40)) == nn.Sequential(*layers.values())(x).numel()
