"""Coefficients of the gap models against scikit-learn and SciPy."""

from __future__ import annotations

import numpy
import pytest
from scipy.optimize import nnls
from sklearn.linear_model import LinearRegression, RidgeCV

from gapscope.prediction.fits import RIDGE_STRENGTHS, fit_coefficients


def _data(seed: int, n: int = 30, p: int = 5) -> tuple[numpy.ndarray, numpy.ndarray]:
    rng = numpy.random.default_rng(seed)
    x = rng.normal(size=(n, p)) * 10.0 ** rng.integers(-3, 6, p) + 1
    return x, (x / x.std(0)) @ rng.normal(size=p) + 2 * rng.normal(size=n)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("doubled", [False, True])
def test_ridge_is_that_of_scikit_learn_with_exact_leave_one_out(seed: int, doubled: bool) -> None:
    x, y = _data(seed, n=8 + 5 * seed)
    if doubled:
        x[:, -1] = 3 * x[:, 0]
    scaled = (x - x.mean(0)) / x.std(0)
    theirs = RidgeCV(alphas=RIDGE_STRENGTHS * len(y)).fit(scaled, y)
    ours = fit_coefficients("ridge", x, y, numpy.zeros(5))
    assert ours[1:] * x.std(0) == pytest.approx(theirs.coef_, rel=1e-9, abs=1e-9)
    assert ours[0] + x @ ours[1:] == pytest.approx(theirs.predict(scaled), rel=1e-9)


def test_least_squares_is_that_of_scikit_learn() -> None:
    x, y = _data(0)
    ours = fit_coefficients("linear", x, y, numpy.zeros(5))
    scaled = (x - x.mean(0)) / x.std(0)  # scikit-learn leaves out columns a million times smaller than the largest
    assert ours[0] + x @ ours[1:] == pytest.approx(LinearRegression().fit(scaled, y).predict(scaled), rel=1e-9)


def test_monotone_is_least_squares_with_non_negative_coefficients() -> None:
    x, y = _data(1)
    signs = numpy.array([1.0, 1.0, -1.0, 1.0, -1.0])
    ours = fit_coefficients("monotone", x, y, signs)
    scaled = (x - x.mean(0)) / x.std(0) * signs
    theirs, _ = nnls(scaled, y - y.mean())
    assert ours[1:] * x.std(0) * signs == pytest.approx(theirs, abs=1e-9)
    assert (ours[1:] * signs >= 0).all()
