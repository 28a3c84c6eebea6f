"""Exponents of power laws: exact quantiles, and a slow fit."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from gapscope.base.errors import NotMeasurable
from gapscope.measures.spectra import power_law_alpha, power_law_fit

DOUBLE = torch.float64


@pytest.mark.parametrize("alpha", [2.0, 3.5])
def test_quantiles_of_a_power_law_give_its_exponent(alpha: float) -> None:
    share = (torch.arange(2000, dtype=DOUBLE) + 0.5) / 2000
    values = 0.7 * (1 - share) ** (-1 / (alpha - 1))
    found, start, distance = power_law_fit(values)
    assert found == pytest.approx(alpha, rel=0.01) and distance < 0.005 and start < 2


def slow_fit(values: list[float]) -> tuple[float, float]:
    best = (math.inf, math.nan, math.nan)
    values = sorted(values)
    for start in range(len(values) - 1):
        tail = values[start:]
        alpha = 1 + len(tail) / sum(math.log(v / tail[0]) for v in tail)
        gaps = [abs(1 - (v / tail[0]) ** (1 - alpha) - i / len(tail)) for i, v in enumerate(tail)]
        best = min(best, (max(gaps), alpha, tail[0]))
    return best[1], best[2]


def test_the_fit_of_random_values_is_the_slow_one() -> None:
    values = torch.rand(40, dtype=DOUBLE).reciprocal()
    assert power_law_fit(values)[:2] == pytest.approx(slow_fit(values.tolist()), rel=1e-9)


def test_layers_are_averaged_and_small_ones_left_out() -> None:
    network = nn.Sequential(nn.Linear(30, 40), nn.Linear(40, 25), nn.Linear(25, 3)).double()
    x = torch.ones(1, 30, dtype=DOUBLE)
    fits = []
    for layer in list(network.children())[:2]:
        squares = torch.linalg.svdvals(layer.weight.detach()).square()  # type: ignore[arg-type]
        fits.append((power_law_fit(squares)[0], math.log10(float(squares.max()))))
    found = power_law_alpha(network, x)
    assert found["alpha"] == pytest.approx(sum(a for a, _ in fits) / 2, rel=1e-6)
    assert found["weighted"] == pytest.approx(sum(a * size for a, size in fits) / 2, rel=1e-6)
    with pytest.raises(NotMeasurable, match="50 or more different eigenvalues"):
        power_law_alpha(network, x, min_eigenvalues=50)
