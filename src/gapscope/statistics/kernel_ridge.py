r"""Kernel ridge regression with intercept, and closed-form leave-one-out predictions.

The fit minimizes $\sum_i \lVert b_i - f(x_i) - a \rVert^2 + \lambda \lVert f \rVert_K^2$ over f and the intercept a.
With $R = \lambda (K + \lambda I)^{-1}$ and 1 the vector of ones, its residuals are $\tilde R b$,

$$\tilde R = R - \frac{R 1\, 1^\top R}{1^\top R 1},$$

and for any penalized least squares the residual at sample i of the fit to all *other* samples is
$(\tilde R b)_i / \tilde R_{ii}$: exact, without a single refit, for every $\lambda$ from one decomposition of K. The
intercept absorbs the class frequencies (or the mean target) of the remaining samples, also for unequal classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

# Left-out residuals are divided by how little a sample determines its own prediction; below this all is rounding.
_LEAST_FREEDOM = 1e-9


@dataclass(frozen=True)
class Spectrum:
    r"""Kernel of n samples as $U \mathrm{diag}(w) U^\top$ with r orthonormal columns.

    Attributes:
        vectors: U, float64.
        values: w, not negative, float64.
    """

    vectors: Float[Tensor, "n r"]
    values: Float[Tensor, " r"]

    @property
    def mean(self) -> float:
        """Mean of all n eigenvalues, the unit in which ridges are given."""
        return float(self.values.sum()) / len(self.vectors)


@dataclass(frozen=True)
class LooResult:
    """Leave-one-out result for one ridge strength.

    Attributes:
        predictions: Prediction at every sample by the fit to all others, [n, k].
        squared_error: Mean over samples, sum over the k targets, of the squared held-out residual.
        generalized_cross_validation: The same with the mean of the freedoms in place of each sample's own.
        effective_dimension: Trace of the matrix that maps targets to fitted values, the intercept's 1 included.
        largest_leverage: Largest weight of a sample's own target in its fitted value.
    """

    predictions: Float[Tensor, "n k"]
    squared_error: float
    generalized_cross_validation: float
    effective_dimension: float
    largest_leverage: float


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
    freedom = (freedom - of_ones.squeeze(1).square() / total).clamp_min(_LEAST_FREEDOM)
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
