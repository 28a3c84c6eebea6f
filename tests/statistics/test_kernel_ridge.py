"""Closed-form left-out predictions against as many refits as there are samples, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gapscope.statistics.kernel_ridge import loo_predictions, nystroem_spectrum, select_ridge, spectrum


def some_kernel(n: int, rank: int, seed: int = 0) -> Tensor:
    features = torch.randn(n, rank, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return features @ features.T


def refitted(kernel: Tensor, targets: Tensor, ridge: float) -> Tensor:
    """Predict every sample by kernel ridge regression with a free intercept on the others, one solve a sample."""
    n, predictions = len(kernel), []
    for i in range(n):
        others = [j for j in range(n) if j != i]
        # stationarity: (K + ridge I) alpha + a 1 = b and 1^T alpha = 0
        system = torch.zeros(n, n, dtype=torch.float64)
        system[: n - 1, : n - 1] = kernel[others][:, others] + ridge * torch.eye(n - 1, dtype=torch.float64)
        system[: n - 1, -1] = system[-1, : n - 1] = 1
        solution = torch.linalg.solve(system, torch.cat([targets[others], torch.zeros_like(targets[:1])]))
        predictions.append(kernel[i, others] @ solution[:-1] + solution[-1])
    return torch.stack(predictions)


@pytest.mark.parametrize("rank", [4, 40], ids=["singular", "regular"])
@pytest.mark.parametrize("ridge", [1e-3, 1.0, 100.0])
def test_left_out_predictions_are_those_of_n_refits(rank: int, ridge: float) -> None:
    kernel = some_kernel(15, rank)
    targets = torch.randn(15, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 3
    found = loo_predictions(spectrum(kernel), targets, ridge)
    expected = refitted(kernel, targets, ridge)
    torch.testing.assert_close(found.predictions, expected, rtol=1e-8, atol=1e-8)
    assert found.squared_error == pytest.approx(float((targets - expected).square().sum(1).mean()))


def test_a_constant_is_predicted_by_the_intercept_alone() -> None:
    targets = torch.full((12, 1), 7.0, dtype=torch.float64)
    found = loo_predictions(spectrum(some_kernel(12, 5)), targets, 0.1)
    torch.testing.assert_close(found.predictions, targets)


def test_effective_dimension_and_generalized_cross_validation_by_the_dense_matrix() -> None:
    n, ridge = 10, 0.7
    kernel, ones = some_kernel(n, 4), torch.ones(10, 1, dtype=torch.float64)
    targets = torch.randn(n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    inverse = torch.linalg.inv(kernel + ridge * torch.eye(n, dtype=torch.float64)) * ridge
    maker = inverse - inverse @ ones @ ones.T @ inverse / (ones.T @ inverse @ ones)
    found = loo_predictions(spectrum(kernel), targets, ridge)
    freedom = float(maker.trace())
    assert found.effective_dimension == pytest.approx(n - freedom)
    assert found.largest_leverage == pytest.approx(1 - float(maker.diagonal().min()))
    expected = float((maker @ targets).square().sum() / n) / (freedom / n) ** 2
    assert found.generalized_cross_validation == pytest.approx(expected)


def test_the_chosen_ridge_has_the_smallest_left_out_error() -> None:
    kernel = spectrum(some_kernel(30, 30))
    targets = torch.randn(30, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    ridges = (1e-3, 1e-1, 10.0)
    ridge, found = select_ridge(kernel, targets, ridges)
    errors = {r: loo_predictions(kernel, targets, r * kernel.mean).squared_error for r in ridges}
    assert errors[ridge] == found.squared_error == min(errors.values())


def test_as_many_landmarks_as_the_rank_are_enough() -> None:
    kernel, targets = some_kernel(40, 6), torch.randn(40, 2, dtype=torch.float64)
    exact = loo_predictions(spectrum(kernel), targets, 0.3)
    approximate = loo_predictions(nystroem_spectrum(kernel[:, :10], kernel[:10, :10]), targets, 0.3)
    torch.testing.assert_close(approximate.predictions, exact.predictions, rtol=1e-6, atol=1e-8)
