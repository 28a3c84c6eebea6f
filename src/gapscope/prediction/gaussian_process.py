r"""Gaussian process regression as plain arrays: a kernel chosen by scikit-learn, weights on the fitted networks.

With standardized readings x, target y of mean $\bar y$ and $k(x, x') = s^2 \exp(-\lVert x - x' \rVert^2 / 2 \ell^2)$
the posterior mean is $\bar y + \sum_i \alpha_i k(x, x_i)$, $\alpha = (K + \sigma^2 I)^{-1} (y - \bar y)$ (Rasmussen and
Williams 2006, eq. 2.25). $s$, $\ell$ and $\sigma$ maximize the marginal likelihood.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy
from jaxtyping import Float, Int

Array = numpy.ndarray
# readings that are standardized lie about 1 from each other: shorter would be noise, longer is a straight line
LENGTHS = (0.5, 50.0)


@dataclass(frozen=True)
class Kernel:
    """Similarity of networks by their readings, and the networks that new ones are compared with.

    Attributes:
        centre: Means of the readings of the fitted networks.
        scale: Their standard deviations, infinite where constant.
        points: Standardized readings of the fitted networks.
        variance: s squared, in squared units of the target.
        length: l, in standard deviations of the readings.
        noise: sigma squared, in squared units of the target.
    """

    centre: Float[Array, " p"]
    scale: Float[Array, " p"]
    points: Float[Array, "n p"]
    variance: float
    length: float
    noise: float

    def __call__(self, x: Float[Array, "m p"]) -> Float[Array, "m n"]:
        """Similarity of each network with every fitted one."""
        return self._similarities((x - self.centre) / self.scale, self.points)

    def _similarities(self, a: Float[Array, "m p"], b: Float[Array, "n p"]) -> Float[Array, "m n"]:
        squares = ((a[:, None] - b[None]) ** 2).sum(2)
        return self.variance * numpy.exp(-squares / (2 * self.length**2))

    def weights(self, y: Float[Array, " n"], rows: Int[Array, " r"]) -> Float[Array, " n_plus_1"]:
        """Mean of the target, then the alphas, of the process fitted to these of the networks; the others' are 0.

        Args:
            y: Target of all networks, in the order of `points`.
            rows: Which of them to fit to.

        Returns:
            Weights of 1 and of the similarities.
        """
        found = numpy.zeros(1 + len(self.points))
        found[0] = y[rows].mean()
        gram = self._similarities(self.points[rows], self.points[rows]) + self.noise * numpy.eye(len(rows))
        found[1 + rows] = numpy.linalg.solve(gram, y[rows] - found[0])
        return found

    def deviation(self, x: Float[Array, "m p"], rows: Int[Array, " r"] | None = None) -> Float[Array, " m"]:
        """Standard deviation of the target of new networks, given some of the fitted ones (None: all).

        Args:
            x: Readings of the new networks.
            rows: Which fitted networks are known.

        Returns:
            One a network, in units of the target (eq. 2.26, with the noise).
        """
        rows = numpy.arange(len(self.points)) if rows is None else rows
        gram = self._similarities(self.points[rows], self.points[rows]) + self.noise * numpy.eye(len(rows))
        similar = self(x)[:, rows]
        explained = (similar * numpy.linalg.solve(gram, similar.T).T).sum(1)
        return numpy.sqrt(numpy.maximum(self.variance - explained, 0.0) + self.noise)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {key: value.tolist() if isinstance(value, Array) else value for key, value in vars(self).items()}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Kernel:
        """Build from plain JSON (infinities arrive as strings)."""
        centre, scale, points = (numpy.array(content[key], dtype=float) for key in ("centre", "scale", "points"))
        variance, length, noise = (float(content[key]) for key in ("variance", "length", "noise"))
        return cls(centre, scale, points.reshape(-1, len(centre)), variance, length, noise)


def fit_kernel(x: Float[Array, "n p"], y: Float[Array, " n"]) -> Kernel:
    """The kernel under which these targets are most likely; deterministic.

    Args:
        x: Readings.
        y: Target.

    Returns:
        The kernel around these networks.

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
