"""LogME against a dense normal density and a numerical maximum."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import multivariate_normal
from torch import Tensor

from gapscope.statistics.kernel_ridge import log_evidence, log_evidence_per_sample


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
    best = minimize(lambda p: -dense(f, b, math.exp(p[0]), math.exp(p[1])), [0.0, 0.0], method="Nelder-Mead")
    assert log_evidence_per_sample(f, b) == pytest.approx(-best.fun / 30, abs=1e-4)
    other = b.roll(1, 0)
    both = log_evidence_per_sample(f, torch.cat([b, other], 1))
    assert both == pytest.approx((log_evidence_per_sample(f, b) + log_evidence_per_sample(f, other)) / 2)
