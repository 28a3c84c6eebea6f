"""Euclidean against empirical length of the weights before a normalization."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from batch_norm.some_networks import Residual, images, warmed_up
from gapscope.base.errors import NotMeasurable
from gapscope.base.samples import Samples
from gapscope.batch_norm.gamma_decay.evaluation_data import EvaluationData
from gapscope.batch_norm.gamma_decay.length_factors import euclidean_length_factors
from gapscope.batch_norm.norm_layers import batch_norm_layers
from gapscope.batch_norm.refresh import refresh_population
from gapscope.inspection.losses import sample_losses


def factors_of(network: nn.Module, samples: Samples, chunk_size: int, names: list[str] | None = None) -> Any:
    layers = batch_norm_layers(network, names)
    return euclidean_length_factors(EvaluationData(network, layers, samples, sample_losses, chunk_size))


@pytest.mark.parametrize("chunk_size", [7, 1000])
def test_white_inputs_have_factor_one(chunk_size: int) -> None:
    x = torch.randn(500, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = x - x.mean(0)
    x = 3 * x @ torch.linalg.inv(torch.linalg.cholesky(x.T @ x / 500)).T
    network = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, eps=0.0)).double().eval()
    refresh_population(network, x, layers=["1"])
    factors = factors_of(network, Samples(x, x), chunk_size)
    torch.testing.assert_close(factors["1"], torch.ones(6, dtype=torch.float64))


def test_coloured_inputs() -> None:
    x = torch.randn(500, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 2.0, 3.0])
    network: Any = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5)).eval()
    refresh_population(network, x, layers=["1"])
    weight = network[0].weight.detach().double()
    covariance = torch.cov(x.double().T, correction=0)
    empirical = ((weight @ covariance) * weight).sum(1)
    euclidean = covariance.trace() / 3 * weight.square().sum(1)
    factors = factors_of(network, Samples(x, x), 100)
    torch.testing.assert_close(factors["1"], (euclidean / empirical).sqrt(), rtol=1e-4, atol=0)


def test_grouped_convolution_takes_the_inputs_of_its_group() -> None:
    network: Any = warmed_up(Residual().double())
    x = images(30).inputs
    factors = factors_of(network, images(30), 8, ["norm2"])
    inputs = network.relu(network.norm1(network.conv1(x))).transpose(0, 1).flatten(1).var(1, unbiased=False)
    variance = inputs.view(2, 2).mean(1).repeat_interleave(2)
    norm = network.conv2.weight.flatten(1).square().sum(1)
    expected = (variance * norm / (network.norm2.running_var + network.norm2.eps)).sqrt()
    torch.testing.assert_close(factors["norm2"], expected.detach())


def test_a_layer_without_weights_before_it_is_refused() -> None:
    network = warmed_up(Residual().double())
    with pytest.raises(NotMeasurable, match="metric='euclid' needs the weights before layer 'last'"):
        factors_of(network, images(5), 8)
