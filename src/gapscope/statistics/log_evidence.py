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
    """Return LogME: maximum log evidence per sample in nats, mean over targets.

    Exact up to the fixed-point iteration. Targets are one-hot labels or regression targets.

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
    """Maximize one target's evidence over alpha and beta."""
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
    """Return the squared residual and the squared norm of the posterior mean weights."""
    shrunk = alpha / (alpha + beta * values)
    residual = float((shrunk * inside).square().sum()) + outside
    return residual, float((values * (beta * inside / (alpha + beta * values)).square()).sum())


def log_evidence(
    values: Float[Tensor, " r"], inside: Float[Tensor, " r"], outside: float, n: int, d: int, alpha: float, beta: float
) -> float:
    r"""Return the log density of $N(0, \beta^{-1} I + \alpha^{-1} F F^\top)$ in nats.

    `values` are squared singular values of F, `inside` the target's left singular coordinates, `outside` its squared
    norm outside of them.
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
