"""Formulas of every kind of layer, and the statistics behind them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from batch_norm.some_networks import Residual, images, warmed_up
from gapscope.base.errors import InvalidInput
from gapscope.batch_norm.layers._channel_norm import with_mean, with_mean_and_variance
from gapscope.batch_norm.layers.ghost import GhostBatchNorm1d, GhostBatchNorm2d
from gapscope.batch_norm.layers.partial import (
    MeanOnlyBatchNorm1d,
    MeanOnlyBatchNorm2d,
    VarianceOnlyBatchNorm1d,
    VarianceOnlyBatchNorm2d,
)
from gapscope.batch_norm.layers.population import PopulationNorm1d, PopulationNorm2d
from gapscope.batch_norm.layers.weight import initialize_from_data, weight_normalize


def values(*shape: int) -> Tensor:
    return 1 + 2 * torch.randn(
        shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )


@pytest.mark.parametrize(
    ("dtype", "sum_dtype", "offset"),
    [
        (torch.float32, torch.float32, 1000),
        (torch.float64, torch.float64, 1000),
        (torch.bfloat16, torch.float32, 0),
    ],
)
def test_mean_and_variance(dtype: torch.dtype, sum_dtype: torch.dtype, offset: int) -> None:
    """Also far from zero; half precision is summed in single precision."""
    h = values(64, 3, 8, 8).to(dtype) + offset
    same, mean, variance = with_mean_and_variance(h, sum_dtype)
    assert torch.equal(same, h)
    torch.testing.assert_close(mean, h.double().mean((0, 2, 3)).to(sum_dtype))
    torch.testing.assert_close(with_mean(h, sum_dtype)[1], mean)
    expected = h.double().var((0, 2, 3), unbiased=False).to(sum_dtype)
    torch.testing.assert_close(
        variance, expected, rtol=1e-4 if offset else None, atol=0 if offset else None
    )


def with_affine(layer: Any) -> tuple[Any, Tensor, Tensor]:
    """Return a layer in float64 with other gamma and beta than 1 and 0, and both in the shape of images."""
    with torch.no_grad():
        layer.double().weight.copy_(torch.tensor([2.0, -1.0]))
        layer.bias.copy_(torch.tensor([0.5, 0.0]))
    return layer, layer.weight[:, None, None], layer.bias[:, None, None]


def test_formula_of_mean_only() -> None:
    h = 5 + torch.randn(8, 2, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    layer, gamma, beta = with_affine(MeanOnlyBatchNorm2d(2, momentum=0.25))
    mean = h.mean((0, 2, 3), keepdim=True)
    torch.testing.assert_close(layer(h), gamma * (h - mean) + beta)
    torch.testing.assert_close(layer.running_mean, 0.25 * mean.flatten())
    torch.testing.assert_close(layer.eval()(h), gamma * (h - 0.25 * mean) + beta)


def test_a_batch_norm_state_raises() -> None:
    with pytest.raises(RuntimeError, match="running_var"):
        MeanOnlyBatchNorm1d(3).load_state_dict(nn.BatchNorm1d(3).state_dict())


@pytest.mark.parametrize("rms", [False, True])
def test_formula_of_variance_only(rms: bool) -> None:
    h = 2 + torch.randn(8, 2, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    layer, gamma, beta = with_affine(VarianceOnlyBatchNorm2d(2, momentum=0.25, rms=rms))
    values = h.transpose(0, 1).flatten(1)
    biased = values.square().mean(1) if rms else values.var(1, unbiased=False)
    tracked = biased if rms else values.var(1)
    torch.testing.assert_close(
        layer(h), gamma * h / (biased + layer.eps).sqrt()[:, None, None] + beta
    )
    running = 0.75 + 0.25 * tracked
    torch.testing.assert_close(layer.running_var, running)
    torch.testing.assert_close(
        layer.eval()(h), gamma * h / (running + layer.eps).sqrt()[:, None, None] + beta
    )


def test_a_constant_channel_is_divided_by_the_root_of_eps() -> None:
    h = torch.full((4, 1), 3.0)
    torch.testing.assert_close(VarianceOnlyBatchNorm1d(1, eps=1e-4)(h), 100 * h)
    torch.testing.assert_close(
        VarianceOnlyBatchNorm1d(1, eps=1e-4, rms=True)(h), h / (9 + 1e-4) ** 0.5
    )
    assert torch.equal(VarianceOnlyBatchNorm1d(1)(torch.zeros(4, 1)), torch.zeros(4, 1))


def filled(layer: PopulationNorm2d) -> PopulationNorm2d:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for tensor in [*layer.parameters(), layer.running_mean, layer.running_var]:
            tensor.copy_(torch.rand(4, generator=generator) + 0.3)
    return layer


@pytest.fixture
def h() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return (
        2 + 3 * torch.randn(6, 4, 3, 3, generator=generator, dtype=torch.float64)
    ).requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_training_value_is_the_evaluation_value_bit_for_bit(h: Tensor, dtype: torch.dtype) -> None:
    layer = filled(PopulationNorm2d(4)).double()
    layer = layer.float() if dtype == torch.bfloat16 else layer.to(dtype)
    x = h.detach().to(dtype)
    assert torch.equal(layer.train()(x), layer.eval()(x))


def test_same_value_as_batch_norm_in_evaluation(h: Tensor) -> None:
    layer, batch_norm = filled(PopulationNorm2d(4).double()), nn.BatchNorm2d(4).double().eval()
    batch_norm.load_state_dict(layer.state_dict())
    assert torch.equal(layer(h), batch_norm(h))
    layer.load_state_dict(batch_norm.state_dict())


@pytest.mark.parametrize("affine", [True, False])
def test_gradient_is_that_of_batch_renormalization(h: Tensor, affine: bool) -> None:
    layer: Any = PopulationNorm2d(4, affine=affine).double()
    if affine:
        filled(layer)
    layer.running_mean.uniform_(1, 3)
    layer.running_var.uniform_(5, 15)
    g = torch.randn(h.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    ours = torch.autograd.grad(layer(h), [h, *layer.parameters()], g)

    gamma, beta = (
        (p.detach().clone().requires_grad_() for p in (layer.weight, layer.bias))
        if affine
        else (None, None)
    )
    spread = (h.var((0, 2, 3), unbiased=False) + layer.eps).sqrt()
    population = (layer.running_var + layer.eps).sqrt()
    r, d = (
        (spread / population).detach(),
        ((h.mean((0, 2, 3)) - layer.running_mean) / population).detach(),
    )
    normalized = (h - h.mean((0, 2, 3))[:, None, None]) / spread[:, None, None]
    y = normalized * r[:, None, None] + d[:, None, None]
    if gamma is not None and beta is not None:
        y = y * gamma[:, None, None] + beta[:, None, None]
    torch.testing.assert_close(layer(h), y)
    oracle = torch.autograd.grad(y, [h] if gamma is None else [h, gamma, beta], g)
    for one, other in zip(ours, oracle, strict=True):
        torch.testing.assert_close(one, other)


def test_detached_gradient_is_the_plain_one(h: Tensor) -> None:
    layer: Any = filled(PopulationNorm2d(4, detach=True).double())
    (gradient,) = torch.autograd.grad(layer(h).sum(), h)
    expected = (layer.weight / (layer.running_var + layer.eps).sqrt())[:, None, None].expand(
        6, 4, 3, 3
    )
    torch.testing.assert_close(gradient, expected.detach())
    single = PopulationNorm1d(2, detach=True)
    assert single(torch.ones(1, 2)).isfinite().all()


@settings(deadline=None, max_examples=25)
@given(
    n=st.integers(2, 23),
    ghost_size=st.integers(2, 9),
    channels=st.integers(1, 4),
    side=st.integers(1, 3),
)
def test_every_part_is_batch_normalized_by_itself(
    n: int, ghost_size: int, channels: int, side: int
) -> None:
    h = torch.randn(n, channels, side, side, dtype=torch.float64)
    layer: Any = GhostBatchNorm2d(channels, ghost_size, momentum=1.0).double()
    nn.init.uniform_(layer.weight)
    nn.init.uniform_(layer.bias)
    y = layer(h)
    parts = max(1, n // ghost_size)
    large, size = n % parts, n // parts
    block = torch.arange(large * (size + 1)), torch.arange(large * (size + 1), n)
    members = [block[0][i::large] for i in range(large)] + [
        block[1][i :: parts - large] for i in range(parts - large)
    ]
    statistics = []
    for part in members:
        plain: Any = nn.BatchNorm2d(channels, momentum=1.0).double()
        plain.load_state_dict({**plain.state_dict(), "weight": layer.weight, "bias": layer.bias})
        torch.testing.assert_close(y[part], plain(h[part]))
        statistics.append(torch.stack([plain.running_mean, plain.running_var]))
        assert len(part) >= min(ghost_size, n)
    mean, variance = torch.stack(statistics).mean(0)
    torch.testing.assert_close(layer.running_mean, mean)
    torch.testing.assert_close(layer.running_var, variance)
    assert layer.num_batches_tracked == 1


def test_parts_of_one_value_raise() -> None:
    with pytest.raises(InvalidInput, match="least 2 values per"):
        GhostBatchNorm1d(3, ghost_size=1)(torch.randn(8, 3))
    assert GhostBatchNorm2d(3, ghost_size=1)(torch.randn(8, 3, 2, 2)).isfinite().all()


def test_weight_normalization_keeps_the_function() -> None:
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


def test_initialization_from_data_standardizes_every_layer() -> None:
    network: Any = nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.Tanh(),
        nn.Conv2d(4, 5, 3),
        nn.Flatten(),
        nn.Linear(20, 6),
        nn.Linear(6, 2, bias=False),
    )
    network = weight_normalize(network.double())
    x = images(64).inputs
    initialize_from_data(network, x, generator=torch.Generator().manual_seed(1))
    direction = network[0].parametrizations.weight.original1
    assert 0.03 < direction.std() < 0.07
    for module in network:
        x = module(x)
        if isinstance(module, nn.Conv2d) or (
            isinstance(module, nn.Linear) and module.bias is not None
        ):
            channels = x.transpose(0, 1).flatten(1)
            torch.testing.assert_close(
                channels.mean(1), torch.zeros(len(channels), dtype=torch.float64)
            )
            torch.testing.assert_close(
                channels.std(1, unbiased=False), torch.ones(len(channels), dtype=torch.float64)
            )
    torch.testing.assert_close(x.std(0, unbiased=False), torch.ones(2, dtype=torch.float64))


def test_a_constant_channel_keeps_length_one() -> None:
    layer: Any = initialize_from_data(weight_normalize(nn.Linear(2, 1)), torch.ones(4, 2))
    assert (
        layer.parametrizations.weight.original0.item() == 1.0
        and layer(torch.ones(4, 2)).abs().max() < 1e-6
    )
