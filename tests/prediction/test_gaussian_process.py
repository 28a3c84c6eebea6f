"""The Gaussian process against scikit-learn's, and intervals that leave out whole kinds of networks."""

from __future__ import annotations

import numpy
import pandas
import pytest
from scipy.stats import multivariate_normal
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from gapscope.base.errors import InvalidInput
from gapscope.prediction.fits import fit_kernel
from gapscope.prediction.gap_estimator import GapEstimator


def pool(n: int = 40, kinds: int = 5) -> pandas.DataFrame:
    """Gap curved in two readings, plus an offset of each kind; `third` is constant."""
    rng = numpy.random.default_rng(0)
    table = pandas.DataFrame({"a": rng.uniform(0, 1, n), "b": rng.normal(size=n), "third": 2.0})
    table["kind"] = [f"kind {i % kinds}" for i in range(n)]
    table["error"] = 0.01 + 0.02 * table["a"]
    offsets = numpy.array([0.1 * (i % kinds) for i in range(n)])
    return table.assign(gap=numpy.sin(3 * table["a"]) + 0.2 * table["b"] + offsets + 0.01 * rng.normal(size=n))


def test_estimates_are_those_of_scikit_learn() -> None:
    table, new = pool(), pool(60).iloc[40:]
    found = GapEstimator(kind="gaussian_process", features=("a", "b", "third")).fit(table, table["gap"])
    kernel = found.kernel_
    assert kernel is not None
    scaled, asked = (
        (part[["a", "b"]] - table[["a", "b"]].mean()) / table[["a", "b"]].std(ddof=0) for part in (table, new)
    )
    fixed = ConstantKernel(kernel.variance, "fixed") * RBF(kernel.length, "fixed") + WhiteKernel(kernel.noise, "fixed")
    oracle = GaussianProcessRegressor(fixed).fit(scaled, table["gap"] - table["gap"].mean())
    values, deviations = oracle.predict(asked, return_std=True)[:2]
    numpy.testing.assert_allclose(found.predict(new), values + table["gap"].mean(), atol=1e-8)
    numpy.testing.assert_allclose(kernel.deviation(new[["a", "b", "third"]].to_numpy()), deviations, rtol=1e-6)


def test_the_chosen_kernel_is_more_likely_than_its_neighbours() -> None:
    table = pool()
    x, y = table[["a", "b"]].to_numpy(), table["gap"].to_numpy()
    kernel = fit_kernel(x, y)
    z = (x - x.mean(0)) / x.std(0)
    squares = ((z[:, None] - z) ** 2).sum(2)

    def likelihood(variance: float, length: float, noise: float) -> float:
        covariance = variance * numpy.exp(-squares / 2 / length**2) + noise * numpy.eye(len(y))
        return float(multivariate_normal(numpy.zeros(len(y)), covariance).logpdf(y - y.mean()))

    chosen = numpy.array([kernel.variance, kernel.length, kernel.noise])
    for k in range(3):
        for factor in (0.8, 1.25):
            other = chosen * numpy.where(numpy.arange(3) == k, factor, 1.0)
            assert likelihood(*other) < likelihood(*chosen)


@pytest.mark.parametrize("kind", ["linear", "gaussian_process"])
def test_clusters_are_left_out_together(kind: str) -> None:
    table = pool()
    found = GapEstimator(kind=kind, features=("a", "b"), clusters=("kind",)).fit(table, table["gap"])
    rest = table[table["kind"] != "kind 2"]
    kernel, rows = found.kernel_, numpy.flatnonzero(table["kind"] != "kind 2")
    if kernel is None:
        again = GapEstimator(kind=kind, features=("a", "b"), interval="none").fit(rest, rest["gap"])
        expected = again.predict(table)
    else:
        weights = kernel.weights(table["gap"].to_numpy(), rows)
        assert (weights[1:][table["kind"] == "kind 2"] == 0).all()
        expected = weights[0] + kernel(table[["a", "b"]].to_numpy()) @ weights[1:]
    held = (table["kind"] == "kind 2").to_numpy()
    residuals = numpy.abs(table["gap"] - expected)[held]
    if kernel is not None:
        residuals = residuals / kernel.deviation(table.loc[held, ["a", "b"]].to_numpy(), rows)
    numpy.testing.assert_allclose(found.residuals_[held], residuals, atol=1e-9)
    alone = GapEstimator(kind=kind, features=("a", "b")).fit(table, table["gap"])
    if kernel is None:
        widths = [numpy.diff(each.predict_interval(table)).mean() for each in (found, alone)]
        assert widths[0] > widths[1]  # a kind that was not seen is farther off than a network


def test_one_kind_alone_cannot_be_left_out() -> None:
    table = pool(kinds=1)
    with pytest.raises(InvalidInput, match="clusters must separate the networks into two kinds or more; kind has one"):
        GapEstimator(features=("a",), clusters=("kind",)).fit(table, table["gap"])


def test_intervals_are_as_wide_as_the_spread_says() -> None:
    table = pool()
    found = GapEstimator(features=("a", "b"), error_scale="error").fit(table, table["gap"])
    new = table.iloc[:2].assign(error=[0.01, 0.02], a=0.5, b=0.0)
    narrow, wide = numpy.diff(found.predict_interval(new)).ravel()
    # the refits differ a little from each other, so that the ratio is not quite the one of the spreads
    assert wide / narrow == pytest.approx(2.0, rel=0.1)
    with pytest.raises(InvalidInput, match="error_scale must hold positive numbers; column 'error' holds 0"):
        found.predict_interval(new.assign(error=0.0))
