r"""Log evidence of linear regression on features: LogME, a transferability score.

Each target b (of one-hot labels, or a regression target) has the model $b = F w + \varepsilon$ with
$w \sim N(0, \alpha^{-1} I)$ and $\varepsilon \sim N(0, \beta^{-1} I)$; $\alpha$ and $\beta$ maximize the evidence (You,
Liu, Wang and Long 2021, arXiv:2102.11005, eq. 2 and algorithm 1).
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

MAX_ITERATIONS, TOLERANCE = 200, 1e-6


def log_evidence_per_sample(features: Float[Tensor, "n d"], targets: Float[Tensor, "n k"]) -> float:
    """Maximum log evidence per sample, in nats, as a mean over targets: LogME. Exact up to the fixed-point iteration.

    Args:
        features: One row per sample.
        targets: One-hot labels, or regression targets.

    Returns:
        The score; a larger one predicts a better transfer. It has no unit of accuracy.

    >>> x = torch.tensor([[-1.0], [1.0], [2.0]])
    >>> log_evidence_per_sample(x, 2 * x + 0.1) > log_evidence_per_sample(x, x**2)
    True
    """
    f, b = features.double(), targets.double()
    n, d = f.shape
    left, singular, _ = torch.linalg.svd(f, full_matrices=False)
    values = singular.square()
    inside = left.T @ b
    outside = (b.square().sum(0) - inside.square().sum(0)).clamp_min(0.0)
    scores = [_maximum(values, inside[:, k], float(outside[k]), n, d) for k in range(b.shape[1])]
    return sum(scores) / len(scores)


def _maximum(values: Tensor, inside: Tensor, outside: float, n: int, d: int) -> float:
    """Evidence of one target at its best alpha and beta; `inside` is the target in the left singular directions."""
    alpha = beta = 1.0
    for _ in range(MAX_ITERATIONS):
        residual, square_norm = _parts(values, inside, outside, alpha, beta)
        effective = float((beta * values / (alpha + beta * values)).sum())
        new_alpha = effective / max(square_norm, 1e-12)
        new_beta = max(n - effective, 1e-12) / max(residual, 1e-12)
        settled = abs(new_alpha / new_beta - alpha / beta) <= TOLERANCE * alpha / beta
        alpha, beta = new_alpha, new_beta
        if settled:
            break
    return log_evidence(values, inside, outside, n, d, alpha, beta) / n


def _parts(values: Tensor, inside: Tensor, outside: float, alpha: float, beta: float) -> tuple[float, float]:
    """Squared residual and squared norm of the mean of the weights."""
    shrunk = alpha / (alpha + beta * values)
    residual = float((shrunk * inside).square().sum()) + outside
    return residual, float((values * (beta * inside / (alpha + beta * values)).square()).sum())


def log_evidence(
    values: Float[Tensor, " r"], inside: Float[Tensor, " r"], outside: float, n: int, d: int, alpha: float, beta: float
) -> float:
    r"""Logarithm of the evidence, that of $N(0, \beta^{-1} I + \alpha^{-1} F F^\top)$ at one target.

    Args:
        values: Squared singular values of the features.
        inside: Target in the left singular directions.
        outside: Squared norm of what lies outside of them.
        n: Number of samples.
        d: Number of features.
        alpha: Precision of the weights.
        beta: Precision of the noise.

    Returns:
        The logarithm, in nats.
    """
    residual, square_norm = _parts(values, inside, outside, alpha, beta)
    log_determinant = float((alpha + beta * values).log().sum()) + (d - len(values)) * math.log(alpha)
    return 0.5 * (
        n * math.log(beta)
        + d * math.log(alpha)
        - n * math.log(2 * math.pi)
        - beta * residual
        - alpha * square_norm
        - log_determinant
    )
