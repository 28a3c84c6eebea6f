"""Left-out predictions against refits, LogME against a dense density, class scores against scikit-learn."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import multivariate_normal
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from torch import Tensor

from gapscope.base.errors import NotMeasurable
from gapscope.statistics.kernel_ridge import (
    are_unequal,
    class_scores,
    log_evidence,
    log_evidence_per_sample,
    loo_predictions,
    nystroem_spectrum,
    select_ridge,
    spectrum,
)


def some_kernel(n: int, rank: int, seed: int = 0) -> Tensor:
    features = torch.randn(
        n, rank, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    return features @ features.T


def refitted(kernel: Tensor, targets: Tensor, ridge: float) -> Tensor:
    """Predict every sample by kernel ridge regression with a free intercept on the others, one solve a sample."""
    n, predictions = len(kernel), []
    for i in range(n):
        others = [j for j in range(n) if j != i]
        # stationarity: (K + ridge I) alpha + a 1 = b and 1^T alpha = 0
        system = torch.zeros(n, n, dtype=torch.float64)
        system[: n - 1, : n - 1] = kernel[others][:, others] + ridge * torch.eye(
            n - 1, dtype=torch.float64
        )
        system[: n - 1, -1] = system[-1, : n - 1] = 1
        solution = torch.linalg.solve(
            system, torch.cat([targets[others], torch.zeros_like(targets[:1])])
        )
        predictions.append(kernel[i, others] @ solution[:-1] + solution[-1])
    return torch.stack(predictions)


@pytest.mark.parametrize("rank", [4, 40], ids=["singular", "regular"])
@pytest.mark.parametrize("ridge", [1e-3, 1.0, 100.0])
def test_loo_predictions_are_those_of_n_refits(rank: int, ridge: float) -> None:
    kernel = some_kernel(15, rank)
    targets = (
        torch.randn(15, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 3
    )
    result = loo_predictions(spectrum(kernel), targets, ridge)
    expected = refitted(kernel, targets, ridge)
    torch.testing.assert_close(result.predictions, expected, rtol=1e-8, atol=1e-8)
    assert result.squared_error == pytest.approx(float((targets - expected).square().sum(1).mean()))


def test_effective_dimension_and_leverage_by_the_dense_matrix() -> None:
    n, ridge = 10, 0.7
    kernel, ones = some_kernel(n, 4), torch.ones(10, 1, dtype=torch.float64)
    targets = torch.randn(n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    inverse = torch.linalg.inv(kernel + ridge * torch.eye(n, dtype=torch.float64)) * ridge
    maker = inverse - inverse @ ones @ ones.T @ inverse / (ones.T @ inverse @ ones)
    result = loo_predictions(spectrum(kernel), targets, ridge)
    freedom = float(maker.trace())
    assert result.effective_dimension == pytest.approx(n - freedom)
    assert result.largest_leverage == pytest.approx(1 - float(maker.diagonal().min()))


def test_the_chosen_ridge_has_the_smallest_loo_error() -> None:
    kernel = spectrum(some_kernel(30, 30))
    targets = torch.randn(30, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    ridges = (1e-3, 1e-1, 10.0)
    ridge, result = select_ridge(kernel, targets, ridges)
    errors = {r: loo_predictions(kernel, targets, r * kernel.mean).squared_error for r in ridges}
    assert errors[ridge] == min(errors.values())
    assert result.squared_error == pytest.approx(errors[ridge])


def test_as_many_landmarks_as_the_rank_are_enough() -> None:
    kernel, targets = some_kernel(40, 6), torch.randn(40, 2, dtype=torch.float64)
    exact = loo_predictions(spectrum(kernel), targets, 0.3)
    nystroem = nystroem_spectrum(kernel[:, :10].__getitem__, kernel[:10, :10], len(kernel))
    approximate = loo_predictions(nystroem, targets, 0.3)
    torch.testing.assert_close(approximate.predictions, exact.predictions, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("n_classes", [2, 3, 5])
@pytest.mark.parametrize("ties", [False, True])
def test_scores_are_those_of_scikit_learn(n_classes: int, ties: bool) -> None:
    generator = torch.Generator().manual_seed(n_classes)
    labels = torch.multinomial(
        torch.arange(1.0, n_classes + 1), 200, replacement=True, generator=generator
    )
    logits = torch.randn(200, n_classes, generator=generator) + torch.nn.functional.one_hot(
        labels, n_classes
    )
    scores = (logits.round() if ties else logits).softmax(1)
    result = class_scores(scores, labels)
    assert result.balanced_accuracy == pytest.approx(
        balanced_accuracy_score(labels, scores.argmax(1))
    )
    expected = roc_auc_score(
        labels, scores[:, 1] if n_classes == 2 else scores, multi_class="ovr", average="macro"
    )
    assert result.auc == pytest.approx(expected)
    assert result.largest == float(labels.bincount().max()) / 200


def test_classes_are_unequal_from_twice_the_samples_on() -> None:
    assert are_unequal(torch.tensor([0, 0, 1])) and not are_unequal(torch.tensor([0, 0, 0, 1, 1]))
    # empty classes
    assert not are_unequal(torch.tensor([2, 2, 4])[:2]) and are_unequal(torch.tensor([2, 2, 4]))


def data(n: int, d: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    f = torch.randn(n, d, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, 1, generator=generator, dtype=torch.float64)
    return f, f[:, :1] - 0.5 * f[:, 1:2] + 0.7 * noise


def dense(f: Tensor, b: Tensor, alpha: float, beta: float) -> float:
    covariance: Any = (torch.eye(len(f), dtype=torch.float64) / beta + f @ f.T / alpha).numpy()
    return float(multivariate_normal(cov=covariance).logpdf(b[:, 0].numpy()))


@pytest.mark.parametrize(("n", "d"), [(12, 4), (6, 9)])
def test_evidence_is_a_normal_density(n: int, d: int) -> None:
    f, b = data(n, d)
    left, singular, _ = torch.linalg.svd(f, full_matrices=False)
    inside = (left.T @ b)[:, 0]
    outside = float(b.square().sum() - inside.square().sum())
    value = log_evidence(singular.square(), inside, outside, n, d, 0.8, 3.0)
    assert value == pytest.approx(dense(f, b, 0.8, 3.0))


def test_score_is_the_maximum_per_sample_and_the_mean_over_targets() -> None:
    f, b = data(30, 4)
    best = minimize(
        lambda p: -dense(f, b, math.exp(p[0]), math.exp(p[1])), [0.0, 0.0], method="Nelder-Mead"
    )
    assert log_evidence_per_sample(f, b) == pytest.approx(-best.fun / 30, abs=1e-4)
    other = b.roll(1, 0)
    both = log_evidence_per_sample(f, torch.cat([b, other], 1))
    assert both == pytest.approx(
        (log_evidence_per_sample(f, b) + log_evidence_per_sample(f, other)) / 2
    )


def test_a_kernel_that_is_not_finite_is_refused() -> None:
    kernel = torch.eye(5)
    kernel[0, 1] = float("nan")
    with pytest.raises(NotMeasurable, match="kernel must be finite"):
        spectrum(kernel)
    with pytest.raises(NotMeasurable, match="kernel must be finite"):
        nystroem_spectrum(kernel.__getitem__, kernel[:3, :3], len(kernel))
