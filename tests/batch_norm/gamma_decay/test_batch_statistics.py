"""Batch mean and standard deviation as random variables: closed forms and data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from batch_norm.some_networks import images, plain, warmed_up
from gapscope.base.errors import InvalidInput
from gapscope.batch_norm.gamma_decay.batch_statistics import (
    BatchStatistics,
    batch_statistics,
    gaussian_std_moments,
)

N, CHANNELS = 20_000, 8
SHAPE = {"gaussian": (0.0, 0.0), "laplace": (3.0, 0.0), "uniform": (-1.2, 0.0), "exponential": (6.0, 2.0)}


def population(name: str) -> Tensor:
    """Return independent channels at quantiles of the distribution, in random order."""
    levels = (torch.arange(N, dtype=torch.float64) + 0.5) / N
    values = {
        "gaussian": torch.special.ndtri(levels),
        "laplace": torch.sign(levels - 0.5) * -torch.log1p(-2 * (levels - 0.5).abs()),
        "uniform": levels,
        "exponential": -torch.log1p(-levels),
    }[name]
    generator = torch.Generator().manual_seed(0)
    return torch.stack([values[torch.randperm(N, generator=generator)] for _ in range(CHANNELS)], 1)


def measured(
    name: str, sizes: tuple[int, ...], batches: int = 25_000
) -> dict[tuple[int, str], tuple[float, float, float]]:
    """Return (size, quantity) -> value, standard error and prediction without the factor f."""
    layer = nn.BatchNorm1d(CHANNELS, eps=1e-12).double()
    found = {}
    for size in sizes:
        infinite = (N - 1) / (N - size)  # undoes the factor of drawing without replacement
        rows = batch_statistics(layer, population(name), batch_sizes=(size,), passes=max(1, batches * size // N))
        for row in rows:
            error = float(row.standard_error.square().sum() ** 0.5) / CHANNELS
            values = float(row.measured.mean()), error, float(row.predicted.mean())
            found[size, row.quantity] = tuple(infinite * value for value in values)
    return found  # type: ignore[return-value]


def check(value: tuple[float, float, float], expected: float, tolerance: float) -> None:
    assert abs(value[0] / expected - 1) < tolerance + 2 * value[1] / abs(expected)
    assert value[1] / abs(expected) < 0.02


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "tolerances"),
    [
        ("gaussian", {16: 0.017, 128: 0.003}),
        ("laplace", {32: 0.095, 128: 0.025}),
        ("uniform", {32: 0.06}),
        ("exponential", {32: 0.15, 128: 0.05}),
    ],
)
def test_variances_of_batch_mean_and_standard_deviation(name: str, tolerances: dict[int, float]) -> None:
    found = measured(name, tuple(tolerances), batches=60_000)
    standard = (population(name) - population(name).mean(0)) / population(name).std(0, unbiased=False)
    kurtosis = float(standard.pow(4).mean()) - 3
    assert kurtosis == pytest.approx(SHAPE[name][0], rel=0.03, abs=0.01)
    for size, tolerance in tolerances.items():
        check(found[size, "mean_variance"], 1 / size, 0.006)
        check(found[size, "std_variance"], (kurtosis + 2) / (4 * size), tolerance)


@pytest.mark.parametrize("name", SHAPE)
def test_predictions_to_first_order(name: str) -> None:
    (kurtosis, skewness), size = SHAPE[name], 32
    found = measured(name, (size,), batches=1)
    expected = {
        "mean_variance": 1.0,
        "std_variance": (kurtosis + 2) / 4,
        "std_bias": -(kurtosis + 6) / 8,
        "inverse_std_bias": (3 * kurtosis + 10) / 8,
        "covariance": skewness / 2,
    }
    for quantity, value in expected.items():
        assert size * found[size, quantity][2] == pytest.approx(value, rel=0.02, abs=1e-6)


def test_biases_of_the_gaussian() -> None:
    found = measured("gaussian", (32,), batches=60_000)
    check(found[32, "std_bias"], -6 / 8 / 32, 0.02)
    check(found[32, "inverse_std_bias"], 10 / 8 / 32, 0.06)
    exact_std, exact_inverse, _ = gaussian_std_moments(32)
    assert found[32, "std_bias"][0] == pytest.approx(exact_std - 1, abs=4 * found[32, "std_bias"][1] + 1e-4)
    assert found[32, "inverse_std_bias"][0] == pytest.approx(exact_inverse - 1, rel=0.02)


def test_covariance_of_the_exponential() -> None:
    found = measured("exponential", (128,), batches=10_000)
    check(found[128, "covariance"], 2 / (2 * 128), 0.05)


def test_exact_moments_of_the_gaussian() -> None:
    assert [gaussian_std_moments(m)[0] for m in (16, 32)] == pytest.approx([0.95225383, 0.97634676], abs=1e-8)
    inverse = [gaussian_std_moments(m)[1] for m in (16, 32, 128)]
    assert inverse == pytest.approx([1.08829010, 1.04143654, 1.00990704], abs=1e-8)
    assert [gaussian_std_moments(m)[2] for m in (4, 16)] == pytest.approx([4, 16 / 13], abs=1e-12)
    with pytest.raises(InvalidInput, match=r"batch_size must lie in \(3, inf\); got 3"):
        gaussian_std_moments(3)


def test_convolutions_against_the_definition() -> None:
    network: Any = warmed_up(plain())
    rows = batch_statistics(network, images(60), batch_sizes=(12,), passes=400, chunk_size=17)
    by_name = {(row.layer, row.quantity): row for row in rows}
    assert [row.layer for row in rows][::5] == ["1", "4", "8"]
    h = network[0](images(60).inputs)
    mean, deviation = h.mean((0, 2, 3)), h.transpose(0, 1).flatten(1).std(1, unbiased=False)
    generator = torch.Generator().manual_seed(3)
    batches = torch.stack([h[torch.randperm(60, generator=generator)[:12]] for _ in range(2000)])
    a = (batches.mean((1, 3, 4)) - mean) / deviation
    s = batches.transpose(1, 2).flatten(2).std(2, unbiased=False) / deviation - 1
    for quantity, values in (("mean_variance", a.var(0)), ("std_variance", s.var(0)), ("std_bias", s.mean(0))):
        row = by_name["1", quantity]
        torch.testing.assert_close(row.measured, values.detach(), rtol=0.15, atol=4 * float(row.standard_error.max()))
    row = by_name["1", "mean_variance"]
    torch.testing.assert_close(row.measured, row.predicted, rtol=0, atol=5 * float(row.standard_error.max()))
    assert bool((row.paper > 1.5 * row.predicted).all())  # positions of a sample are no copies of each other


def test_table_and_errors() -> None:
    layer = nn.BatchNorm1d(2)
    x = torch.randn(40, 2)
    rows = batch_statistics(layer, x, batch_sizes=(4, 8), passes=3)
    assert isinstance(rows, BatchStatistics) and rows.to_pandas().shape == (10, 4) and "std_bias" in repr(rows)
    assert layer.num_batches_tracked == 0
    with pytest.raises(InvalidInput, match=r"batch_sizes .* must lie in \[2, 39\]; got 40"):
        batch_statistics(layer, x, batch_sizes=(40,))
