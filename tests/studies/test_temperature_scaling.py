"""The fitted temperature against scipy's minimum."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from gapscope_studies.forouzesh2021.networks import fit_temperature


def sampled(sharpness: float, n: int = 400, k: int = 5) -> tuple[Tensor, Tensor]:
    """Logits, and labels that follow softmax(logits / sharpness)."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(n, k, generator=generator, dtype=torch.float64)
    return logits * sharpness, torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)


@pytest.mark.parametrize("sharpness", [0.01, 0.5, 1.0, 30.0, 1e6])
def test_is_the_minimum_that_scipy_finds(sharpness: float) -> None:
    logits, labels = sampled(sharpness)

    def loss(log_temperature: float) -> float:
        return nn.functional.cross_entropy(logits / math.exp(log_temperature), labels).item()

    middle = math.log(sharpness)
    result: Any = minimize_scalar(loss, bounds=(middle - 3, middle + 3), method="bounded", options={"xatol": 1e-9})
    temperature = fit_temperature(logits, labels)
    assert temperature == pytest.approx(math.exp(result.x), rel=1e-6)
    assert loss(math.log(temperature)) <= result.fun + 1e-12


def test_recovers_the_temperature_that_made_the_labels_and_ignores_what_softmax_ignores() -> None:
    logits, labels = sampled(3.0, n=20_000)
    temperature = fit_temperature(logits, labels)
    assert temperature == pytest.approx(3, rel=0.03)
    assert fit_temperature(10 * logits, labels) == pytest.approx(10 * temperature, rel=1e-9)
    assert fit_temperature(logits + torch.arange(20_000)[:, None], labels) == pytest.approx(temperature, rel=1e-9)


def test_without_a_finite_optimum_it_is_nan() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    assert math.isnan(fit_temperature(logits, torch.tensor([0, 1])))
    assert math.isnan(fit_temperature(logits, torch.tensor([1, 0])))
