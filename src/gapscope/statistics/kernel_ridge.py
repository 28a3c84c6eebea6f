"""Kernel ridge regression: leave-one-out scores and log evidence."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

# Left-out residuals are divided by how little a sample determines its own prediction; below this all is rounding.
_MIN_DEGREES_OF_FREEDOM = 1e-9


@dataclass(frozen=True)
class Spectrum:
    r"""Kernel of n samples as $U \mathrm{diag}(w) U^\top$ with r columns, in float64."""

    vectors: Float[Tensor, "n r"]  # U
    values: Float[Tensor, " r"]  # w, not negative

    @property
    def mean(self) -> float:
        """Mean of all n eigenvalues, the unit in which ridges are given."""
        return float(self.values.sum()) / len(self.vectors)


@dataclass(frozen=True)
class LooResult:
    """Leave-one-out result for one ridge strength."""

    predictions: Float[Tensor, "n k"]  # at every sample by the fit to all others
    squared_error: float  # mean over samples, sum over the k targets, of the squared held-out residual
    generalized_cross_validation: float  # squared error with the mean of 1 - leverage in place of each sample's own
    effective_dimension: float  # trace of the map from targets to fitted values, the intercept's 1 included
    largest_leverage: float  # largest weight of a sample's own target in its fitted value


def spectrum(kernel: Float[Tensor, "n n"]) -> Spectrum:
    """Decompose the kernel of all pairs exactly."""
    values, vectors = torch.linalg.eigh(kernel.double())
    return Spectrum(vectors, values.clamp_min(0.0))


def nystroem_spectrum(columns: Float[Tensor, "n m"], landmarks: Float[Tensor, "m m"]) -> Spectrum:
    r"""Decompose the Nystroem approximation $K_{nm} K_{mm}^{+} K_{mn}$."""
    values, vectors = torch.linalg.eigh(landmarks.double())
    # eigenvalues below the rounding of the (usually float32) kernel would be blown up by the inverse square root;
    # errors of rounding are independent, so that they do not add up with the number of landmarks
    retained = values > values[-1] * 10 * torch.finfo(landmarks.dtype).eps
    features = columns.double() @ (vectors[:, retained] / values[retained].sqrt())
    # the spectrum of F F^T from that of the small F^T F
    squares, directions = torch.linalg.eigh(features.T @ features)
    positive = squares > squares[-1] * len(squares) * torch.finfo(torch.float64).eps
    return Spectrum(features @ (directions[:, positive] / squares[positive].sqrt()), squares[positive])


def loo_predictions(kernel: Spectrum, targets: Float[Tensor, "n k"], ridge: float) -> LooResult:
    r"""Return leave-one-out predictions and errors for one positive ridge."""
    vectors, n = kernel.vectors, len(kernel.vectors)
    shrinkage = ridge / (kernel.values + ridge)

    def residual_maker(b: Tensor) -> Tensor:
        """Multiply by R (the part outside the r columns is not fitted)."""
        inside = vectors.T @ b
        return vectors @ (shrinkage[:, None] * inside) + (b - vectors @ inside if vectors.shape[1] < n else 0.0)

    square = vectors.square()
    freedom = square @ shrinkage + ((1 - square.sum(1)).clamp_min(0.0) if vectors.shape[1] < n else 0.0)  # R_ii
    of_ones = residual_maker(torch.ones(n, 1, dtype=torch.float64, device=vectors.device))
    total = of_ones.sum()
    residuals = residual_maker(targets) - of_ones * (of_ones.T @ targets) / total
    freedom = (freedom - of_ones.squeeze(1).square() / total).clamp_min(_MIN_DEGREES_OF_FREEDOM)
    left = residuals / freedom[:, None]
    return LooResult(
        predictions=targets - left,
        squared_error=float(left.square().sum(1).mean()),
        generalized_cross_validation=float(residuals.square().sum(1).mean() / freedom.mean() ** 2),
        effective_dimension=float(n - freedom.sum()),
        largest_leverage=float(1 - freedom.min()),
    )


def select_ridge(
    kernel: Spectrum,
    targets: Float[Tensor, "n k"],
    ridges: tuple[float, ...],
    error: Callable[[LooResult], float] = lambda results: results.squared_error,
) -> tuple[float, LooResult]:
    """Return the ridge of the smallest `error` and its result."""
    unit = kernel.mean or 1.0
    results = [(ridge, loo_predictions(kernel, targets, ridge * unit)) for ridge in ridges]
    return min(results, key=lambda item: error(item[1]))


MAX_ITERATIONS, TOLERANCE = 200, 1e-6


def log_evidence_per_sample(features: Float[Tensor, "n d"], targets: Float[Tensor, "n k"]) -> float:
    """Return LogME: maximum log evidence per sample in nats, mean over targets.

    Exact up to the fixed-point iteration. Targets are one-hot labels or regression targets.
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


MIN_RATIO = 2.0  # classes are unequal if the largest has this many times the samples of the smallest


@dataclass(frozen=True)
class ClassScores:
    """Scores that weight all classes equally."""

    balanced_accuracy: float  # mean over the classes of the fraction of their samples that are predicted correctly
    auc: float  # area under the ROC curve; with more than two classes the mean of one class against the rest
    largest: float  # fraction of the samples in the largest class

    @classmethod
    def mean(cls, scores: list[ClassScores]) -> ClassScores:
        """Return the mean of several scores of the same labels."""
        n = len(scores)
        balanced, area = (sum(getattr(one, name) for one in scores) / n for name in ("balanced_accuracy", "auc"))
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
    n = int(positive.sum())
    others = len(positive) - n
    return float((ranks[positive].sum() - n * (n + 1) / 2) / (n * others))


def class_scores(scores: Float[Tensor, "n c"], labels: Int[Tensor, " n"]) -> ClassScores:
    """Return balanced accuracy and area under the ROC curve.

    `scores` has one score per class; the largest is the prediction. Areas compare the scores of one class between
    samples: pass probabilities, not logits, of more than two classes. Classes without a sample do not count.
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
