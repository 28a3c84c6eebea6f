"""Population statistics by streaming, against a computation in memory."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from batch_norm.some_networks import Residual, images, plain, warmed_up
from gapscope.base.errors import NotMeasurable
from gapscope.base.samples import as_samples
from gapscope.batch_norm.layers.population import PopulationNorm1d
from gapscope.batch_norm.refresh import refresh_population, with_data_statistics
from gapscope.batch_norm.replace import replace_batch_norm
from gapscope.inspection.memoization import memo_scope


def statistics(network: nn.Module) -> dict[str, Tensor]:
    return {name: b.clone() for name, b in network.named_buffers() if "running" in name}


def by_hand(network: nn.Sequential, x: Tensor) -> list[Tensor]:
    result = []
    modules: Any = network
    for module in modules:
        if hasattr(module, "running_mean"):
            over = [0, *range(2, x.ndim)]
            mean, variance = x.mean(over), x.var(over, unbiased=False)
            result += [mean, variance]
            shape = (1, -1, *[1] * (x.ndim - 2))
            x = (x - mean.view(shape)) / (variance + module.eps).sqrt().view(shape)
            x = x * module.weight.view(shape) + module.bias.view(shape)
        else:
            x = module(x)
    return [tensor.detach() for tensor in result]


@pytest.mark.parametrize("chunk_size", [7, 40])
def test_layer_by_layer_with_earlier_layers_already_updated(chunk_size: int) -> None:
    network = replace_batch_norm(warmed_up(plain()), "population")
    refresh_population(network, images(40, seed=99), chunk_size=chunk_size)
    expected = by_hand(network, images(40, seed=99).inputs)
    for one, other in zip(statistics(network).values(), expected, strict=True):
        torch.testing.assert_close(one, other)


def test_forward_order_not_order_of_registration() -> None:
    network = replace_batch_norm(warmed_up(Residual().double()), "population")
    other = copy.deepcopy(network)
    refresh_population(network, images(30), chunk_size=30)
    refresh_population(other, images(30), chunk_size=11)
    torch.testing.assert_close(statistics(other), statistics(network))
    # a fixed point: every layer is consistent with the ones before it
    refresh_population(other, images(30))
    torch.testing.assert_close(statistics(other), statistics(network))


def test_nothing_else_changes() -> None:
    network: Any = replace_batch_norm(warmed_up(plain()), "population").train()
    network[1].eval()
    before = {name: p.clone() for name, p in network.named_parameters()}
    modes = [module.training for module in network.modules()]
    state = torch.get_rng_state()
    refresh_population(network, images())
    assert all(torch.equal(p, before[name]) for name, p in network.named_parameters())
    assert modes == [module.training for module in network.modules()]
    assert torch.equal(state, torch.get_rng_state())
    assert all(
        layer.num_batches_tracked == 11
        for layer in network
        if hasattr(layer, "num_batches_tracked")
    )


def test_a_shuffling_loader_gives_every_layer_the_same_samples() -> None:
    samples = images(60)
    loader = DataLoader(TensorDataset(samples.inputs, torch.zeros(60)), batch_size=8, shuffle=True)
    network = replace_batch_norm(warmed_up(plain()), "population")
    refresh_population(network, loader, samples=20)
    part = as_samples(loader, at_most=20)
    assert len(part) == 20 and part.original([19]).item() > 19  # a random part of all samples
    for one, other in zip(statistics(network).values(), by_hand(network, part.inputs), strict=True):
        torch.testing.assert_close(one, other)


class Endless(IterableDataset[Tensor]):
    """Random samples without end."""

    def __iter__(self) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(0)
        while True:
            yield torch.randn(3, generator=generator)


def test_an_endless_loader_is_read_up_to_the_number_of_samples() -> None:
    layer = PopulationNorm1d(3)
    refresh_population(layer, DataLoader(Endless(), batch_size=16), samples=50)
    stream = iter(Endless())
    expected = torch.stack([next(stream) for _ in range(50)]).double()
    torch.testing.assert_close(layer.running_mean.double(), expected.mean(0), rtol=1e-6, atol=1e-7)


def test_batch_norm_layers_can_be_named() -> None:
    network = warmed_up(plain())
    before = statistics(network)
    refresh_population(network, images(), layers=["4"])
    changed = [
        name for name, value in statistics(network).items() if not torch.equal(value, before[name])
    ]
    assert changed == ["4.running_mean", "4.running_var"]


def test_without_names_all_layers_of_a_network_without_population_norm_are_refreshed() -> None:
    network, other = (warmed_up(plain()) for _ in range(2))
    refresh_population(network, images())
    refresh_population(other, images(), layers=["1", "4", "8"])
    for name, value in statistics(network).items():
        assert torch.equal(value, statistics(other)[name])
    with pytest.raises(NotMeasurable, match="normalization layers"):
        refresh_population(nn.Linear(3, 2), images())


def test_not_finite_activations_change_nothing() -> None:
    network: Any = replace_batch_norm(warmed_up(plain()), "population")
    with torch.no_grad():
        network[3].weight[2] = torch.inf
    before = statistics(network)
    with pytest.raises(NotMeasurable, match="layer '4' hold NaN"):
        refresh_population(network, images())
    assert all(torch.equal(value, before[name]) for name, value in statistics(network).items())


def test_statistics_of_the_same_network_and_data_are_computed_once_in_a_scope() -> None:
    network, x = plain(), images(20).inputs
    with memo_scope():
        first = with_data_statistics(network, x)
        assert first is not network and with_data_statistics(network, x) is first
        with torch.no_grad():
            next(network.parameters()).mul_(2)
        second = with_data_statistics(network, x)
    assert second is not first and any(
        not torch.equal(a, b)
        for a, b in zip(statistics(first).values(), statistics(second).values(), strict=True)
    )


class NormWithActivation(nn.BatchNorm1d):
    def forward(self, h: Tensor) -> Tensor:
        return super().forward(h).relu()


def test_the_statistics_of_a_subclass_that_does_more_are_those_of_its_inputs() -> None:
    x = torch.randn(50, 3)
    network = nn.Sequential(nn.Linear(3, 4), NormWithActivation(4), nn.Linear(4, 2)).eval()
    norm: Any = with_data_statistics(network, x)[1]  # type: ignore[index]
    torch.testing.assert_close(norm.running_mean, network[0](x).mean(0).detach())
