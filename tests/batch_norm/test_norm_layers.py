"""Normalization layers of a network, their order, and the layers before them."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn

from batch_norm.some_networks import Residual, images, plain, warmed_up
from gapscope.base.errors import InvalidInput, NotMeasurable, NotYetSupported
from gapscope.batch_norm.layers.ghost import GhostBatchNorm1d
from gapscope.batch_norm.layers.population import PopulationNorm1d
from gapscope.batch_norm.norm_layers import batch_norm_layers, in_forward_order, preceding_layers


class NormWithActivation(nn.BatchNorm1d):
    """As in some model collections: a subclass that does more than normalize."""


def test_kinds_that_count() -> None:
    network = nn.Sequential(
        nn.BatchNorm1d(2), PopulationNorm1d(2), GhostBatchNorm1d(2), nn.LayerNorm(2), NormWithActivation(2)
    )
    assert list(batch_norm_layers(network)) == ["0", "1", "2"]
    assert list(batch_norm_layers(network, ["2", "0"])) == ["2", "0"]


def test_errors_name_what_is_there() -> None:
    with pytest.raises(InvalidInput, match=r"got '01'\. Did you mean '1'|got '01'"):
        batch_norm_layers(plain(), ["01"])
    with pytest.raises(NotMeasurable, match=r"must hold normalization layers \(BatchNorm1d.*it holds none"):
        batch_norm_layers(nn.Linear(2, 2))
    with pytest.raises(InvalidInput, match="Layer '0' must keep running statistics"):
        batch_norm_layers(nn.Sequential(nn.BatchNorm1d(2, track_running_stats=False)))


def test_order_is_that_of_the_forward_pass() -> None:
    network = warmed_up(Residual().double())
    layers = batch_norm_layers(network)
    assert list(layers) == ["last", "norm1", "norm2"]
    assert in_forward_order(network, layers, images(1).inputs) == ["norm1", "norm2", "last"]


def test_a_layer_used_twice_or_never_is_refused() -> None:
    norm = nn.BatchNorm1d(2)
    with pytest.raises(NotYetSupported, match=r"'0'.*2 times"):
        twice = nn.Sequential(OrderedDict([("0", norm), ("1", norm)])).eval()
        in_forward_order(twice, batch_norm_layers(twice), torch.zeros(1, 2))
    unused = nn.Linear(2, 2)
    unused.spare = nn.BatchNorm1d(2)
    with pytest.raises(NotMeasurable, match="Layer 'spare' must be used in the forward pass"):
        in_forward_order(unused, batch_norm_layers(unused), torch.zeros(1, 2))


def test_feeding_layers() -> None:
    network = warmed_up(Residual().double())
    assert preceding_layers(network, batch_norm_layers(network), images(1).inputs) == {
        "norm1": "conv1",
        "norm2": "conv2",
    }
    shared = nn.Linear(2, 2)
    twice = nn.Sequential(shared, nn.BatchNorm1d(2), shared, nn.BatchNorm1d(2)).eval()
    assert preceding_layers(twice, batch_norm_layers(twice), torch.zeros(1, 2)) == {}
    tokens = nn.Sequential(nn.Linear(2, 5), nn.BatchNorm1d(5)).eval()  # [n, 5, 5]: channels are tokens here
    assert preceding_layers(tokens, batch_norm_layers(tokens), torch.zeros(1, 5, 2)) == {}
