"""Readings of an untrained network with batch norm, against dense gradients with statistics computed by hand."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.accuracy.accuracy_estimator import accuracy_readings
from gapscope.statistics.baselines import RIDGES

CLASSES = 3


def untrained() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(
            nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, CLASSES)
        ).double()
        for parameter in network[1].parameters():
            nn.init.normal_(parameter)
    return network


def samples() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(30) % CLASSES
    return 3 + 2 * torch.randn(30, 4, generator=generator, dtype=torch.float64) + y[:, None], y


def by_hand(network: nn.Sequential, x: Tensor) -> tuple[Tensor, Tensor]:
    """Hidden features and dense gradients, with the mean and the variance of these data as constants."""
    w1, b1, scale, shift, w2, b2 = (parameter.detach() for parameter in network.parameters())
    first = x @ w1.T + b1
    mean, spread = first.mean(0), (first.var(0, correction=0) + 1e-5).sqrt()
    normalized = (first - mean) / spread
    hidden = torch.tanh(scale * normalized + shift)
    rows = []
    for i in range(len(x)):
        inner = 1 - hidden[i] ** 2
        outputs = []
        for c in range(CLASSES):
            back = w2[c] * inner
            by_first = back * scale / spread
            by_w2, by_b2 = torch.zeros_like(w2), torch.zeros_like(b2)
            by_w2[c], by_b2[c] = hidden[i], 1.0
            parts = (
                torch.outer(by_first, x[i]),
                by_first,
                back * normalized[i],
                back,
                by_w2,
                by_b2,
            )
            outputs.append(torch.cat([part.flatten() for part in parts]))
        rows.append(torch.cat(outputs))
    return hidden, torch.stack(rows)


def left_out(features: Tensor, y: Tensor) -> Tensor:
    """Ridge regression with a free intercept, refitted without each sample; the ridge of the smallest error."""
    targets = nn.functional.one_hot(y).double()
    unit = float(features.square().sum()) / len(features)
    results = []
    for ridge in RIDGES:
        predictions = []
        for i in range(len(features)):
            rest = torch.arange(len(features)) != i
            centre, mean = features[rest].mean(0), targets[rest].mean(0)
            z = features[rest] - centre
            gram = z @ z.T + ridge * unit * torch.eye(len(z), dtype=z.dtype)
            weights = z.T @ torch.linalg.solve(gram, targets[rest] - mean)
            predictions.append((features[i] - centre) @ weights + mean)
        results.append(torch.stack(predictions))
    return min(results, key=lambda predictions: float((predictions - targets).square().sum()))


def test_forecast_rows_use_the_statistics_of_the_data() -> None:
    network, (x, y) = untrained(), samples()
    hidden, gradients = by_hand(network, x)
    forecast = gs.forecast_accuracy(network, (x, y))
    ntk, features = forecast.row("NTK"), forecast.row("last hidden features")
    assert ntk is not None and features is not None
    torch.testing.assert_close(ntk.predictions, left_out(gradients, y), rtol=1e-6, atol=1e-6)
    hidden = (hidden - hidden.mean(0)) / hidden.std(0, correction=0).mean()
    torch.testing.assert_close(features.predictions, left_out(hidden, y), rtol=1e-6, atol=1e-6)


def test_readings_of_an_estimate_use_the_statistics_of_the_data() -> None:
    network, (x, y) = untrained(), samples()
    initial = copy.deepcopy(network.state_dict())
    expected = left_out(by_hand(network, x)[1], y)
    readings = accuracy_readings(network, initial, gs.Samples(x, y))
    targets = nn.functional.one_hot(y).double()
    assert readings["kernel_leave_one_out.initial.accuracy"] == float(
        (expected.argmax(1) == y).double().mean()
    )
    error = float((expected - targets).square().sum(1).mean())
    assert readings["kernel_leave_one_out.initial.squared_error"] == pytest.approx(error, rel=1e-6)
