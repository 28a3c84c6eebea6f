"""Robust leave-one-out residuals: fixed point, refits, bound of the noise rate."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import gapscope as gs
from gapscope.base.random_streams import make_generator
from gapscope.labels.noise_rate import (
    CLIP,
    MIN_CANARIES,
    ROUNDS,
    fit_robustly,
    noise_rate_bound,
    regression_canaries,
    robust_spread,
)
from gapscope.statistics.baselines import RIDGES
from gapscope.statistics.kernel_ridge import loo_predictions, select_ridge, spectrum


def line(n: int, rate: float, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return features, targets on a plane with noise .1 and some swaps, and the swapped."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    y = x[:, :1] * 2 + x[:, 1:2] + 0.1 * torch.randn(n, 1, generator=generator, dtype=torch.float64)
    wrong = torch.randperm(n, generator=generator)[: round(rate * n)]
    swapped = y.clone()
    swapped[wrong] = y[wrong.roll(1)]
    return x, swapped, wrong


def test_the_fit_is_almost_that_of_the_clean_targets() -> None:
    x, clean, _ = line(200, 0.0)
    gross = clean.clone()
    gross[::10] += 50.0
    kernel = spectrum(x @ x.T)
    _, plain = select_ridge(kernel, gross, RIDGES)
    clipped, _, predictions = fit_robustly(kernel, gross)
    plain_error, error = ((item - clean).abs().mean() for item in (plain.predictions, predictions))
    assert error < 0.1 < plain_error
    # clipped residuals are those of the fit; the others are targets as given
    limit = CLIP * robust_spread(gross - predictions)
    inside = ((gross - predictions).abs() < 0.9 * limit).squeeze(1)
    assert torch.equal(clipped[inside], gross[inside]) and (clipped[::10] < gross[::10] - 40).all()


def test_canaries_get_the_targets_of_others() -> None:
    x, y, _ = line(40, 0.0)
    kernel = spectrum(x @ x.T)
    fit = fit_robustly(kernel, y)
    margins = regression_canaries(kernel, y, *fit, make_generator(0, "canaries"))
    assert margins.canaries.shape == (ROUNDS, MIN_CANARIES)
    draws = make_generator(0, "canaries")
    chosen = torch.randperm(40, generator=draws)[:MIN_CANARIES]
    (fitted, ridge, loo), corrupted = fit, y.clone()
    corrupted[chosen] = y[torch.randint(40, (MIN_CANARIES,), generator=draws)]
    fitted, spread, predictions = fitted.clone(), robust_spread(y - loo), loo[chosen]
    fitted[chosen] = predictions + (corrupted[chosen] - predictions).clamp(
        -CLIP * spread, CLIP * spread
    )
    result = loo_predictions(kernel, fitted, ridge * kernel.mean).predictions
    expected = -((corrupted - result)[chosen] / spread).abs().squeeze(1)
    assert torch.allclose(margins.canaries[0], expected, atol=1e-12)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.25])
def test_the_bound_is_tight_for_swapped_targets(rate: float) -> None:
    x, y, _ = line(600, rate)
    kernel = spectrum(x @ x.T)
    margins = regression_canaries(
        kernel, y, *fit_robustly(kernel, y), make_generator(0, "canaries")
    )
    bound = noise_rate_bound(margins.ordinary.flatten(), margins.canaries.flatten(), quantile=0.3)
    assert bound == pytest.approx(rate, abs=0.03)


@pytest.mark.parametrize(("step", "is_noted"), [(1.0, True), (0.5, False)])
def test_whole_numbers_in_floating_point_are_noted(step: float, is_noted: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(100, 2, generator=generator)
    targets = step * (5 * x[:, 0]).round()
    issues = gs.find_label_issues(None, (x, targets))
    assert any("Pass integers for class labels" in note for note in issues.notes) == is_noted


def test_features_may_be_lists() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(100, 2, generator=generator)
    labels = (x[:, 0] > 0.5).long()
    issues = gs.find_label_issues(features=x.tolist(), labels=labels.tolist())
    assert torch.equal(issues.indices, gs.find_label_issues(features=x, labels=labels).indices)


@pytest.mark.parametrize("size", [0.3, 1.0])
def test_the_bound_holds_for_errors_smaller_than_an_exchange(size: float) -> None:
    x, y, _ = line(400, 0.0)
    y = y / y.std()
    wrong = torch.arange(0, 400, 10)
    y[wrong] += size
    issues = gs.find_label_issues(None, (x, y))
    assert issues.noise is not None and issues.noise.high >= 0.1
    assert set(issues.indices[:40].tolist()) == set(wrong.tolist())
    assert issues.n_flagged == 40 or any("residuals too large" in note for note in issues.notes)


def test_clean_targets_are_not_said_to_be_without_errors() -> None:
    x, y, _ = line(400, 0.0)
    noise = gs.estimate_label_noise(None, (x, y))
    # Wilson's upper end for no error in 400: z^2 / (n + z^2)
    assert noise.high >= 1.6449**2 / (400 + 1.6449**2) - 1e-6


def test_targets_in_bfloat16_are_listed() -> None:
    x, targets, _ = line(60, 0.0)
    issues = gs.find_label_issues(None, (x.float(), targets.bfloat16()))
    given = torch.tensor(issues.to_pandas()["given"].tolist()).bfloat16()
    assert torch.equal(given, issues.given_labels.flatten())
