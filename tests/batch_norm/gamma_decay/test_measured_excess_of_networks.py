"""Predicted excess on trained networks of several layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from gapscope.batch_norm.gamma_decay.measured_excess import ALL_LAYERS, batch_norm_excess


def digits() -> tuple[Tensor, Tensor]:
    data: Any = load_digits()
    return torch.tensor(data.images[:1000] / 16)[:, None], torch.tensor(data.target[:1000])


def trained(network: nn.Module, epochs: int) -> nn.Module:
    x, y = digits()
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9)
    for _ in range(epochs):
        for batch in torch.randperm(len(x), generator=generator).split(50):
            optimizer.zero_grad()
            F.cross_entropy(network(x[batch].float()), y[batch]).backward()
            optimizer.step()
    return network.double()


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.Flatten(), nn.Linear(192, 10),
    )  # fmt: skip


def fully_connected() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32), nn.BatchNorm1d(32),
        nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip


def check_convolutions(sizes: tuple[int, ...], layers: list[str], passes: int) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = trained(convolutional(), 2)
    rows = batch_norm_excess(network, digits(), batch_sizes=sizes, layers=layers, passes=passes, chunk_size=1000)
    for row in rows:
        error = 2 * (row.measured.standard_error or 0) / row.predicted
        assert error < 0.45, row
        if row.layer != ALL_LAYERS:
            assert 1 / 1.5 - error < row.ratio < 1.5 + error, row


def test_a_convolution_within_a_factor() -> None:
    check_convolutions((16, 32), ["4"], passes=60)


@pytest.mark.slow
def test_convolutions_within_a_factor_at_every_batch_size() -> None:
    check_convolutions((16, 32, 64, 128), ["1", "4"], passes=600)


@pytest.mark.parametrize("epochs", [3, pytest.param(12, marks=pytest.mark.thorough)])
def test_fully_connected_layers(epochs: int) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = trained(fully_connected(), epochs)
    rows = batch_norm_excess(network, digits(), batch_sizes=(32, 128), passes=100, chunk_size=1000, noise_draws=10)
    second_order = batch_norm_excess(network, digits(), batch_sizes=(32, 128), passes=1, chunk_size=1000, noise_draws=0)
    for row, other in zip(rows, second_order, strict=True):
        error = 2 * (row.measured.standard_error or 0) / row.predicted
        if row.layer != ALL_LAYERS:
            assert abs(row.ratio - 1) < {32: 0.12, 128: 0.05}[row.batch_size] + error, row
            assert row.measured > 1.1 * other.predicted  # Gauss-Newton leaves the kinks out
