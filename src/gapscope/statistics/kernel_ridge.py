"""Kernel ridge regression: leave-one-out predictions, log evidence, and class scores."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

# Leave-one-out residuals are divided by 1 - leverage, of which less than this is rounding.
_MIN_DEGREES_OF_FREEDOM = 1e-9


@dataclass(frozen=True)
class Spectrum:
    r"""Kernel of n samples as $U \mathrm{diag}(w) U^\top$ with r columns, in float64."""

    vectors: Float[Tensor, "n r"]  # U
    values: Float[Tensor, " r"]  # w, not negative

    @property
    def mean(self) -> float:
        """Mean of all n eigenvalues, the unit of ridges."""
        return float(self.values.sum()) / len(self.vectors)


@dataclass(frozen=True)
class LooResult:
    """Leave-one-out result for one ridge strength."""

    predictions: Float[Tensor, "n k"]  # at every sample, of the fit to all others
    squared_error: float  # mean over samples, sum over the k targets, of the squared leave-one-out residual
    effective_dimension: float  # trace of the map from targets to fitted values, the intercept's 1 included
    largest_leverage: float  # largest weight of a sample's target in its own fitted value


def spectrum(kernel: Float[Tensor, "n n"]) -> Spectrum:
    """Decompose the kernel of all pairs exactly."""
    values, vectors = torch.linalg.eigh(kernel.double())
    return Spectrum(vectors, values.clamp_min(0.0))


def nystroem_spectrum(columns: Float[Tensor, "n m"], landmarks: Float[Tensor, "m m"]) -> Spectrum:
    r"""Decompose the Nystroem approximation $K_{nm} K_{mm}^{+} K_{mn}$."""
    values, vectors = torch.linalg.eigh(landmarks.double())
    # the inverse square root would amplify eigenvalues below the rounding of the (usually float32) kernel; rounding
    # errors are independent, so their threshold does not grow with the number of landmarks
    retained = values > values[-1] * 10 * torch.finfo(landmarks.dtype).eps
    features = columns.double() @ (vectors[:, retained] / values[retained].sqrt())
    # with features F, K = F F^T; if F^T F v = w v, then F v / sqrt(w) is an eigenvector of K with the eigenvalue w
    squares, directions = torch.linalg.eigh(features.T @ features)
    positive = squares > squares[-1] * len(squares) * torch.finfo(torch.float64).eps
    return Spectrum(features @ (directions[:, positive] / squares[positive].sqrt()), squares[positive])


def loo_predictions(kernel: Spectrum, targets: Float[Tensor, "n k"], ridge: float) -> LooResult:
    r"""Return leave-one-out predictions and errors for one positive ridge.

    Without an intercept, the residuals of targets b are $R b$ with $R = \rho (K + \rho I)^{-1}$. With a free intercept
    a, the residuals $R (b - a 1)$ sum to zero, so $a = 1^\top R b / (1^\top R 1)$ and the residuals are $\tilde R b$
    with $\tilde R = R - R 1 1^\top R / (1^\top R 1)$. The leave-one-out residuals are $(\tilde R b)_i / \tilde R_{ii}$.
    """
    vectors, n = kernel.vectors, len(kernel.vectors)
    shrinkage = ridge / (kernel.values + ridge)
    is_full = vectors.shape[1] == n

    def multiply(b: Tensor) -> Tensor:
        """Return R b, with R the identity outside the span of the eigenvectors."""
        inside = vectors.T @ b
        return vectors @ (shrinkage[:, None] * inside) + (0.0 if is_full else b - vectors @ inside)

    square = vectors.square()
    diagonal = square @ shrinkage + (0.0 if is_full else (1 - square.sum(1)).clamp_min(0.0))  # R_ii
    ones = multiply(torch.ones(n, 1, dtype=torch.float64, device=vectors.device))  # R 1
    total = ones.sum()
    residuals = multiply(targets) - ones * (ones.T @ targets) / total
    freedom = (diagonal - ones.squeeze(1).square() / total).clamp_min(_MIN_DEGREES_OF_FREEDOM)
    loo_residuals = residuals / freedom[:, None]
    return LooResult(
        predictions=targets - loo_residuals,
        squared_error=float(loo_residuals.square().sum(1).mean()),
        effective_dimension=float(n - freedom.sum()),
        largest_leverage=float(1 - freedom.min()),
    )


def select_ridge(kernel: Spectrum, targets: Float[Tensor, "n k"], ridges: tuple[float, ...]) -> tuple[float, LooResult]:
    """Return the ridge of the smallest leave-one-out squared error, and its result."""
    unit = kernel.mean or 1.0
    results = [(ridge, loo_predictions(kernel, targets, ridge * unit)) for ridge in ridges]
    return min(results, key=lambda item: item[1].squared_error)


MAX_ITERATIONS, TOLERANCE = 200, 1e-6


def log_evidence_per_sample(features: Float[Tensor, "n d"], targets: Float[Tensor, "n k"]) -> float:
    r"""Return LogME: the maximum log evidence per sample in nats, mean over targets.

    The model of a target b (one-hot or regression) is $b = F w + \epsilon$, $w \sim N(0, \alpha^{-1} I)$ and
    $\epsilon \sim N(0, \beta^{-1} I)$. In the basis of the singular vectors of F, all sums are over singular values.
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
    """Maximize one target's evidence over alpha and beta, by MacKay's fixed point."""
    alpha = beta = 1.0
    for _ in range(MAX_ITERATIONS):
        residual, square_norm = _parts(values, inside, outside, alpha, beta)
        # number of well-determined weights, gamma: alpha = gamma / |w|^2 and beta = (n - gamma) / |b - F w|^2
        effective = float((beta * values / (alpha + beta * values)).sum())
        new_alpha = effective / max(square_norm, 1e-12)
        new_beta = max(n - effective, 1e-12) / max(residual, 1e-12)
        has_converged = abs(new_alpha / new_beta - alpha / beta) <= TOLERANCE * alpha / beta
        alpha, beta = new_alpha, new_beta
        if has_converged:
            break
    return log_evidence(values, inside, outside, n, d, alpha, beta) / n


def _parts(values: Tensor, inside: Tensor, outside: float, alpha: float, beta: float) -> tuple[float, float]:
    """Return the squared residual and the squared norm of the posterior mean weights."""
    # posterior mean weights in the singular basis: beta s b / (alpha + beta s^2), for s^2 = values and b = inside
    shrinkage = alpha / (alpha + beta * values)
    residual = float((shrinkage * inside).square().sum()) + outside
    return residual, float((values * (beta * inside / (alpha + beta * values)).square()).sum())


def log_evidence(
    values: Float[Tensor, " r"], inside: Float[Tensor, " r"], outside: float, n: int, d: int, alpha: float, beta: float
) -> float:
    r"""Return the log density of $N(0, \beta^{-1} I + \alpha^{-1} F F^\top)$ in nats.

    `values` are squared singular values of F [n, d], `inside` the target's coordinates in the left singular vectors,
    `outside` the squared norm of its part orthogonal to them.
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


MIN_RATIO = 2.0  # of the largest and smallest class, from which on classes count as unequal


@dataclass(frozen=True)
class ClassScores:
    """Scores that weight all classes equally."""

    balanced_accuracy: float  # mean over classes of their accuracy
    auc: float  # area under the ROC curve; for more than two classes the mean of one against the rest
    largest: float  # fraction of the samples in the largest class

    @classmethod
    def mean(cls, scores: list[ClassScores]) -> ClassScores:
        """Return the mean of several scores of the same labels."""
        n = len(scores)
        balanced, area = (sum(getattr(item, name) for item in scores) / n for name in ("balanced_accuracy", "auc"))
        return cls(balanced, area, scores[0].largest)


def are_unequal(labels: Int[Tensor, " n"]) -> bool:
    """Return whether the largest class has at least twice the samples of the smallest."""
    counts = labels.bincount()
    counts = counts[counts > 0]
    return len(counts) > 1 and bool(counts.max() >= MIN_RATIO * counts.min())


def _area(scores: Tensor, positive: Tensor) -> float:
    """Return the area under the ROC curve (ties count half)."""
    _, inverse, counts = scores.unique(return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0).double() - (counts - 1) / 2)[inverse]
    # the Mann-Whitney statistic: ranks are 1 to n, ties have their mean rank
    n_positive, n_negative = int(positive.sum()), int((~positive).sum())
    return float((ranks[positive].sum() - n_positive * (n_positive + 1) / 2) / (n_positive * n_negative))


def class_scores(scores: Float[Tensor, "n c"], labels: Int[Tensor, " n"]) -> ClassScores:
    """Return balanced accuracy and area under the ROC curve.

    Pass one score per class; for more than two classes probabilities, not logits, because the area compares the scores
    of one class between samples. Classes without a sample do not count.
    """
    labels, scores = labels.cpu(), scores.detach().double().cpu()
    classes = labels.unique()
    correct = (scores.argmax(1) == labels).double()
    balanced = torch.stack([correct[labels == label].mean() for label in classes]).mean()
    one_against_rest = classes[1:] if len(classes) == 2 else classes
    if scores.shape[1] == 2:
        scores = torch.stack([scores[:, 0] - scores[:, 1], scores[:, 1] - scores[:, 0]], dim=1)
    areas = [_area(scores[:, int(label)], labels == label) for label in one_against_rest]
    return ClassScores(float(balanced), sum(areas) / len(areas), float(labels.bincount().max()) / len(labels))
