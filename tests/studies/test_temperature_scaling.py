"""The fitted temperature against scipy's minimum, and what scaling does to the other measures."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, NotMeasurable
from gapscope.measures.input_jacobian_norm import input_jacobian_norm
from gapscope.measures.output_sensitivity import output_sensitivity
from gapscope_studies.forouzesh2021.temperature_scaling import TemperatureScaled, fit_temperature


def sampled(sharpness: float, n: int = 400, k: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits, and labels that follow softmax(logits / sharpness)."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, k, generator=generator, dtype=torch.float64)
    return logits * sharpness, torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)


@pytest.mark.parametrize("sharpness", [0.01, 0.5, 1.0, 30.0, 1e6])
def test_is_the_minimum_that_scipy_finds(sharpness):
    logits, labels = sampled(sharpness)

    def loss(log_temperature: float) -> float:
        return nn.functional.cross_entropy(logits / math.exp(log_temperature), labels).item()

    middle = math.log(sharpness)
    found: Any = minimize_scalar(loss, bounds=(middle - 3, middle + 3), method="bounded", options={"xatol": 1e-9})
    temperature = fit_temperature(logits, labels)
    assert temperature == pytest.approx(math.exp(found.x), rel=1e-6)
    assert loss(math.log(temperature)) <= found.fun + 1e-12


def test_recovers_the_temperature_that_made_the_labels():
    logits, labels = sampled(3.0, n=20_000)
    assert fit_temperature(logits, labels) == pytest.approx(3, rel=0.03)


def test_scales_with_the_logits_and_ignores_what_softmax_ignores():
    logits, labels = sampled(2.0)
    expected = fit_temperature(logits, labels)
    assert fit_temperature(10 * logits, labels) == pytest.approx(10 * expected, rel=1e-9)
    assert fit_temperature(logits + torch.arange(400)[:, None], labels) == pytest.approx(expected, rel=1e-9)
    assert fit_temperature(logits.float().requires_grad_(), labels) == pytest.approx(expected, rel=1e-5)


def test_a_fitted_network_is_calibrated_and_predicts_the_same():
    logits, labels = sampled(7.0)
    scaled = TemperatureScaled(nn.Identity(), fit_temperature(logits, labels))
    assert fit_temperature(scaled(logits), labels) == pytest.approx(1, rel=1e-9)
    assert torch.equal(scaled(logits).argmax(1), logits.argmax(1))


def test_divides_sensitivity_by_its_square_and_the_jacobian_by_itself():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 4)).double()
    x = torch.randn(50, 6, dtype=torch.float64)
    scaled = TemperatureScaled(network, 2.5)
    for method in ("sampled", "zero_noise"):
        ratio = output_sensitivity(network, x, method=method) / output_sensitivity(scaled, x, method=method)
        assert ratio == pytest.approx(2.5**2, rel=1e-12)
    assert input_jacobian_norm(network, x) / input_jacobian_norm(scaled, x) == pytest.approx(2.5, rel=1e-12)


def test_the_temperature_is_saved_and_not_trained():
    scaled = TemperatureScaled(nn.Linear(3, 2), 1.7)
    assert len(list(scaled.parameters())) == 2
    loaded = TemperatureScaled(nn.Linear(3, 2), 1.0)
    loaded.load_state_dict(scaled.state_dict())
    assert loaded.temperature.item() == 1.7
    assert loaded(torch.ones(1, 3)).dtype == torch.float32


def test_without_a_finite_optimum_it_says_why():
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    with pytest.raises(NotMeasurable, match=r"not all predicted right, .* got 2 of 2 right"):
        fit_temperature(logits, torch.tensor([0, 1]))
    with pytest.raises(NotMeasurable, match="got a network no better than chance"):
        fit_temperature(logits, torch.tensor([1, 0]))


def test_wrong_input_is_named():
    logits, labels = sampled(1.0)
    with pytest.raises(InvalidInput, match=r"logits must be finite and of shape \[n, K\]; got shape \[400\]"):
        fit_temperature(logits[:, 0], labels)
    with pytest.raises(InvalidInput, match="logits and labels must have the same length; got 400 and 3"):
        fit_temperature(logits, labels[:3])
    with pytest.raises(InvalidInput, match="Class labels must be smaller"):
        fit_temperature(logits, labels + 1)
    with pytest.raises(InvalidInput, match=r"temperature must lie in \(0, inf\); got -1"):
        TemperatureScaled(nn.Identity(), -1)
