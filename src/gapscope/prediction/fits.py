r"""Fits of gap models: least squares (plain, ridge, signed) and Gaussian processes.

Columns are centred and scaled first, so that a parameter count of a million and a sparsity of 0.3 can stand side by
side; the coefficients that come back belong to the unscaled columns.

A Gaussian process with standardized readings x, target y of mean $\bar y$ and
$k(x, x') = s^2 \exp(-\lVert x - x' \rVert^2 / 2 \ell^2)$ has the posterior mean
$\bar y + \sum_i \alpha_i k(x, x_i)$, $\alpha = (K + \sigma^2 I)^{-1} (y - \bar y)$ (Rasmussen and Williams 2006, eq.
2.25). scikit-learn chooses $s$, $\ell$ and $\sigma$ of the largest marginal likelihood; the rest are plain arrays.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy
from jaxtyping import Float, Int

Array = numpy.ndarray
RIDGE_STRENGTHS = numpy.logspace(-4, 4, 33)
LINEAR_KINDS = ("linear", "ridge", "monotone")
KINDS = (*LINEAR_KINDS, "gaussian_process")


def _ridge(x: Float[Array, "n p"], y: Float[Array, " n"]) -> Float[Array, " p"]:
    """Ridge on centred columns, its strength chosen by exact leave-one-out error."""
    # the numbers of scikit-learn's RidgeCV (tested), 70 times as fast: prediction intervals fit once a network
    left, singular, right = numpy.linalg.svd(x, full_matrices=False)
    projected = left.T @ y
    strengths = RIDGE_STRENGTHS * len(y)
    shrinkage = singular**2 / (singular**2 + strengths[:, None])  # (strengths, p)
    residuals = y - (shrinkage * projected) @ left.T
    # held-out residual e_i / (1 - h_ii) with h_ii = 1/n + sum_k U_ik^2 d_k^2 / (d_k^2 + alpha), 1/n for the intercept
    leverages = 1 / len(y) + shrinkage @ (left**2).T
    errors = ((residuals / numpy.maximum(1 - leverages, 1e-12)) ** 2).sum(1)
    best = strengths[errors.argmin()]
    return right.T @ (singular / (singular**2 + best) * projected)


def _monotone(x: Float[Array, "n p"], y: Float[Array, " n"], signs: Float[Array, " p"]) -> Float[Array, " p"]:
    from scipy.optimize import lsq_linear  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]

    low = numpy.where(signs > 0, 0.0, -numpy.inf)
    high = numpy.where(signs < 0, 0.0, numpy.inf)
    found = lsq_linear(x, y, bounds=(low, high), method="bvls")  # pyright: ignore[reportUnknownVariableType]
    return found.x  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]


def fit_coefficients(
    kind: str, x: Float[Array, "n p"], y: Float[Array, " n"], signs: Float[Array, " p"]
) -> Float[Array, " p_plus_1"]:
    r"""Return intercept and coefficients of the smallest (penalized, signed) sum of squares.

    $$\min_{c, a} \sum_i \Big(y_i - c - \sum_k a_k x_{ik}\Big)^2$$

    plus $\alpha \sum_k (a_k s_k)^2$ for "ridge" ($s_k$ the standard deviation of column k, $\alpha$ the best of 33
    values between $10^{-4} n$ and $10^4 n$ by leave-one-out error), subject to `signs` for "monotone". Exact; where
    columns are linearly dependent, the solution of smallest scaled norm.

    >>> fit_coefficients("linear", numpy.array([[0.0], [1.0], [2.0]]), numpy.array([1.0, 3.0, 5.0]), numpy.zeros(1))
    array([1., 2.])
    """
    if x.shape[1] == 0:
        return numpy.array([y.mean()])
    largest = numpy.abs(x).max(0)
    largest[largest == 0] = 1.0
    x = x / largest
    centre, scale = x.mean(0), x.std(0)
    scale[scale <= 1e-12] = numpy.inf  # a constant column tells nothing: its coefficient is zero
    scaled, target = (x - centre) / scale, y - y.mean()
    if kind == "ridge":
        coefficients = _ridge(scaled, target)
    elif kind == "monotone":
        coefficients = _monotone(scaled, target, signs)
    else:
        coefficients = numpy.linalg.lstsq(scaled, target, rcond=None)[0]
    coefficients = coefficients / scale
    return numpy.concatenate([[y.mean() - centre @ coefficients], coefficients / largest])


# readings that are standardized lie about 1 from each other: shorter would be noise, longer is a straight line
LENGTHS = (0.5, 50.0)


@dataclass(frozen=True)
class Kernel:
    """Similarity of new networks with fitted ones, by their readings."""

    centre: Float[Array, " p"]
    scale: Float[Array, " p"]  # infinite for a constant reading
    points: Float[Array, "n p"]  # standardized readings of the fitted networks
    variance: float  # s^2
    length: float  # l, in standard deviations of the readings
    noise: float  # sigma^2

    def __call__(self, x: Float[Array, "m p"]) -> Float[Array, "m n"]:
        """Return the similarity of each network with every fitted one."""
        return self._similarities((x - self.centre) / self.scale, self.points)

    def _similarities(self, a: Float[Array, "m p"], b: Float[Array, "n p"]) -> Float[Array, "m n"]:
        squares = ((a[:, None] - b[None]) ** 2).sum(2)
        return self.variance * numpy.exp(-squares / (2 * self.length**2))

    def weights(self, y: Float[Array, " n"], rows: Int[Array, " r"]) -> Float[Array, " n_plus_1"]:
        """Return mean and alphas of the process fitted to some networks (0 for others)."""
        found = numpy.zeros(1 + len(self.points))
        found[0] = y[rows].mean()
        gram = self._similarities(self.points[rows], self.points[rows]) + self.noise * numpy.eye(len(rows))
        found[1 + rows] = numpy.linalg.solve(gram, y[rows] - found[0])
        return found

    def deviation(self, x: Float[Array, "m p"], rows: Int[Array, " r"] | None = None) -> Float[Array, " m"]:
        """Return the standard deviation of the target of new networks, with the noise (eq. 2.26)."""
        rows = numpy.arange(len(self.points)) if rows is None else rows
        gram = self._similarities(self.points[rows], self.points[rows]) + self.noise * numpy.eye(len(rows))
        similar = self(x)[:, rows]
        explained = (similar * numpy.linalg.solve(gram, similar.T).T).sum(1)
        return numpy.sqrt(numpy.maximum(self.variance - explained, 0.0) + self.noise)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Kernel:
        """Build from plain JSON (infinities arrive as strings)."""
        centre, scale, points = (numpy.array(content[key], dtype=float) for key in ("centre", "scale", "points"))
        variance, length, noise = (float(content[key]) for key in ("variance", "length", "noise"))
        return cls(centre, scale, points.reshape(-1, len(centre)), variance, length, noise)


def fit_kernel(x: Float[Array, "n p"], y: Float[Array, " n"]) -> Kernel:
    """Return the kernel of the largest marginal likelihood.

    >>> x = numpy.linspace(0, 1, 30)[:, None]
    >>> kernel = fit_kernel(x, numpy.sin(3 * x[:, 0]))
    >>> weights = kernel.weights(numpy.sin(3 * x[:, 0]), numpy.arange(30))
    >>> round(float(weights[0] + kernel(numpy.array([[0.51]]))[0] @ weights[1:]), 3), round(float(numpy.sin(1.53)), 3)
    (0.999, 0.999)
    """
    from sklearn.exceptions import ConvergenceWarning  # pyright: ignore[reportMissingTypeStubs]
    from sklearn.gaussian_process import GaussianProcessRegressor  # pyright: ignore[reportMissingTypeStubs]
    from sklearn.gaussian_process.kernels import (  # pyright: ignore[reportMissingTypeStubs]
        RBF,
        ConstantKernel,
        WhiteKernel,
    )

    centre, scale = x.mean(0), x.std(0)
    scale[scale <= 1e-12 * numpy.maximum(numpy.abs(centre), 1)] = numpy.inf  # a constant reading tells nothing
    z, unit = (x - centre) / scale, float(y.var()) or 1.0
    start = ConstantKernel(unit, (unit * 1e-3, unit * 1e3)) * RBF(3.0, LENGTHS) + WhiteKernel(
        unit / 5, (unit * 1e-4, unit * 2)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # an end of the range is an answer
        regressor = GaussianProcessRegressor(start)
        regressor.fit(z, y - y.mean())  # pyright: ignore[reportUnknownMemberType]
    fitted = vars(regressor)["kernel_"]
    return Kernel(centre, scale, z, float(fitted.k1.k1.constant_value), float(fitted.k1.k2.length_scale),
                  float(fitted.k2.noise_level))  # fmt: skip
