"""Replacement of normalization layers with the same evaluation function, and the layers of a network."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from batch_norm.some_networks import Residual, images, plain, warmed_up
from gapscope.base.errors import NotMeasurable, NotYetSupported, ReplaceLayer
from gapscope.batch_norm.layers.ghost import GhostBatchNorm1d, GhostBatchNorm2d
from gapscope.batch_norm.layers.partial import (
    MeanOnlyBatchNorm1d,
    MeanOnlyBatchNorm2d,
    VarianceOnlyBatchNorm2d,
)
from gapscope.batch_norm.layers.population import PopulationNorm1d, PopulationNorm2d
from gapscope.batch_norm.norm_layers import batch_norm_layers, in_forward_order, preceding_layers
from gapscope.batch_norm.replace import KINDS, replace_batch_norm
from gapscope.inspection.network_adapter import NetworkAdapter
from support.cases import CASES


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "batch norm" in case.has])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_keeps_the_outputs_of_networks(name: str, kind: str) -> None:
    network, samples = CASES[name].make(5, dtype=torch.float64)
    replaced = replace_batch_norm(network, kind, inputs=samples.inputs)
    torch.testing.assert_close(replaced(samples.inputs), network(samples.inputs))
    if kind in ("batch", "population", "ghost"):
        assert torch.equal(replaced(samples.inputs), network(samples.inputs))
        assert list(replaced.state_dict()) == list(network.state_dict())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weight_norm", [False, True])
@pytest.mark.parametrize("bias", [True, False])
def test_every_kind_keeps_the_evaluation_function(kind: str, weight_norm: bool, bias: bool) -> None:
    network: Any = warmed_up(plain())
    x = images(9).inputs
    if not bias:
        network[0].bias = None
    replaced: Any = replace_batch_norm(network, kind, weight_norm=weight_norm, inputs=x)
    torch.testing.assert_close(replaced(x), network(x))
    assert isinstance(replaced[1], KINDS[kind][1]) and isinstance(replaced[8], KINDS[kind][0])
    assert hasattr(replaced[3], "parametrizations") == weight_norm
    assert type(network[1]) is nn.BatchNorm2d, "the network itself must not change"


def test_the_length_replaces_gamma_in_weight_normalized_mean_only() -> None:
    network: Any = warmed_up(plain())
    x = images(9).inputs
    replaced: Any = replace_batch_norm(network, "mean_only", weight_norm=True, inputs=x)
    assert isinstance(replaced[1], MeanOnlyBatchNorm2d) and replaced[1].weight is None
    lengths = replaced[0].parametrizations.weight.original0.flatten()
    expected = (
        network[1].weight
        / (network[1].running_var + 1e-5).sqrt()
        * network[0].weight.flatten(1).norm(dim=1)
    )
    torch.testing.assert_close(lengths, expected)


def test_back_and_forth_and_rms() -> None:
    network: Any = warmed_up(plain())
    x = images(9).inputs
    population: Any = replace_batch_norm(network, "population", detach=True)
    assert isinstance(population[1], PopulationNorm2d) and population[1].detach
    back = replace_batch_norm(population, "batch")
    assert (
        type(back[1]) is nn.BatchNorm2d
        and back[1].momentum == 0.1
        and torch.equal(back(x), network(x))
    )
    rms: Any = replace_batch_norm(network, "variance_only", rms=True)
    assert isinstance(rms[1], VarianceOnlyBatchNorm2d) and rms[1].rms
    torch.testing.assert_close(rms(x), network(x))


def test_modes_options_and_frozen_parameters_are_carried_over() -> None:
    network: Any = warmed_up(plain()).train()
    network[4].eval()
    network[1].weight.requires_grad_(False)
    replaced: Any = replace_batch_norm(network, "ghost", ghost_size=4, layers=["1", "4"])
    assert isinstance(replaced[1], GhostBatchNorm2d) and replaced[1].ghost_size == 4
    assert replaced[1].training and not replaced[4].training and type(replaced[8]) is nn.BatchNorm1d
    assert not replaced[1].weight.requires_grad and replaced[1].bias.requires_grad
    assert isinstance(replace_batch_norm(nn.BatchNorm1d(2), "mean_only"), MeanOnlyBatchNorm1d)


def test_a_layer_without_a_feeder_raises() -> None:
    network, x = warmed_up(Residual().double()), images(9).inputs
    with pytest.raises(ReplaceLayer, match="layer 'last'"):
        replace_batch_norm(network, "none", inputs=x)
    replaced: Any = replace_batch_norm(network, "none", inputs=x, layers=["norm1", "norm2"])
    assert isinstance(replaced.norm1, nn.Identity) and isinstance(replaced.last, nn.BatchNorm2d)
    torch.testing.assert_close(replaced(x), network(x))


@pytest.mark.parametrize(
    ("layer", "kind", "reason"),
    [
        (
            nn.BatchNorm1d(3, track_running_stats=False),
            "population",
            "it has no running statistics",
        ),
        (
            nn.BatchNorm1d(3, affine=False),
            "mean_only",
            "it has no gamma and beta to absorb what 'mean_only' omits",
        ),
        (nn.SyncBatchNorm(3), "population", "a SyncBatchNorm may do more than normalize"),
    ],
)
def test_layers_that_cannot_be_replaced(layer: nn.Module, kind: str, reason: str) -> None:
    with pytest.raises(
        ReplaceLayer,
        match=f"must keep the evaluation function, which it cannot for layer '0': {reason}",
    ):
        replace_batch_norm(nn.Sequential(layer), kind)


class Shared(nn.Module):
    """A linear layer whose output is used with and without normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        return self.norm(h) + h


def test_a_feeder_with_another_consumer_is_detected() -> None:
    network, x = Shared(), torch.randn(20, 3)
    nn.init.constant_(network.norm.weight, 3.0)
    with pytest.raises(ReplaceLayer, match="the outputs; they changed"):
        replace_batch_norm(network.eval(), "none", inputs=x)


class NormWithActivation(nn.BatchNorm1d):
    """As in some model collections: a subclass that does more than normalize."""

    def forward(self, h: Tensor) -> Tensor:
        return super().forward(h).relu()


class NormAsTorch(nn.BatchNorm1d):
    """A subclass that adds nothing to the function."""


def test_other_kinds_are_excluded_and_subclasses_that_do_more_are_refused() -> None:
    network = nn.Sequential(
        nn.BatchNorm1d(2),
        PopulationNorm1d(2),
        GhostBatchNorm1d(2),
        nn.LayerNorm(2),
        NormAsTorch(2),
        nn.SyncBatchNorm(2),
    )
    assert list(batch_norm_layers(network)) == ["0", "1", "2", "4", "5"]
    assert isinstance(replace_batch_norm(network, "ghost", layers=["4"])[4], GhostBatchNorm1d)
    network.append(NormWithActivation(2))
    with pytest.raises(NotMeasurable, match="'6' is a NormWithActivation"):
        batch_norm_layers(network)
    assert list(batch_norm_layers(network, ["2", "0"])) == ["2", "0"]


def test_a_layer_used_twice_or_never_raises() -> None:
    norm = nn.BatchNorm1d(2)
    with pytest.raises(NotYetSupported, match=r"'0'.*2 times"):
        twice = nn.Sequential(OrderedDict([("0", norm), ("1", norm)])).eval()
        in_forward_order(twice, batch_norm_layers(twice), torch.zeros(1, 2))
    unused = nn.Linear(2, 2)
    unused.spare = nn.BatchNorm1d(2)
    with pytest.raises(NotMeasurable, match="Layer 'spare'"):
        in_forward_order(unused, batch_norm_layers(unused), torch.zeros(1, 2))


def test_preceding_layers() -> None:
    network = warmed_up(Residual().double())
    feeders = preceding_layers(network, batch_norm_layers(network), images(1).inputs)
    assert feeders == {"norm1": "conv1", "norm2": "conv2"}
    shared = nn.Linear(2, 2)
    twice = nn.Sequential(shared, nn.BatchNorm1d(2), shared, nn.BatchNorm1d(2)).eval()
    assert preceding_layers(twice, batch_norm_layers(twice), torch.zeros(1, 2)) == {}
    rectified = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True), nn.BatchNorm1d(2)).eval()
    assert preceding_layers(rectified, batch_norm_layers(rectified), torch.zeros(1, 2)) == {}
    # [n, 5, 5]: channels are tokens here
    tokens = nn.Sequential(nn.Linear(2, 5), nn.BatchNorm1d(5)).eval()
    assert preceding_layers(tokens, batch_norm_layers(tokens), torch.zeros(1, 5, 2)) == {}


class _Nested(nn.Module):
    """Network whose part has the name that an adapted network gives to the whole."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU())
        self.last = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.network(x))


def test_feeders_of_an_adapted_network_are_found() -> None:
    torch.manual_seed(0)
    x = torch.randn(20, 4)
    for bare in (_Nested(), nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))):
        with torch.no_grad():
            bare(x)
        adapted = NetworkAdapter(bare, None)
        replaced = replace_batch_norm(adapted, "none", inputs=x)
        assert not any(isinstance(module, nn.BatchNorm1d) for module in replaced.modules())
        torch.testing.assert_close(replaced.eval()(x), bare.eval()(x))
