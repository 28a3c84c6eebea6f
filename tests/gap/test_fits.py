"""Fits of the gap models against scikit-learn and SciPy, and the region in its corners."""

from __future__ import annotations

import numpy
import pandas
import pytest
from scipy.stats import multivariate_normal
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import RidgeCV

from gapscope.base.errors import InvalidInput
from gapscope.gap.fits import RIDGE_STRENGTHS, ApplicabilityDomain, fit_coefficients, fit_kernel
from gapscope.gap.gap_estimator import GapEstimator


def pool(n: int = 40, kinds: int = 5) -> pandas.DataFrame:
    """Gap curved in two readings, plus an offset of each kind; `third` is constant."""
    rng = numpy.random.default_rng(0)
    table = pandas.DataFrame({"a": rng.uniform(0, 1, n), "b": rng.normal(size=n), "third": 2.0})
    table["kind"] = [f"kind {i % kinds}" for i in range(n)]
    table["error"] = 0.01 + 0.02 * table["a"]
    offsets = numpy.array([0.1 * (i % kinds) for i in range(n)])
    return table.assign(
        gap=numpy.sin(3 * table["a"]) + 0.2 * table["b"] + offsets + 0.01 * rng.normal(size=n)
    )


def test_estimates_are_those_of_scikit_learn() -> None:
    table, new = pool(), pool(60).iloc[40:]
    result = GapEstimator(kind="gaussian_process", features=("a", "b", "third")).fit(
        table, table["gap"]
    )
    kernel = result.kernel_
    assert kernel is not None
    scaled, asked = (
        (part[["a", "b"]] - table[["a", "b"]].mean()) / table[["a", "b"]].std(ddof=0)
        for part in (table, new)
    )
    fixed = ConstantKernel(kernel.variance, "fixed") * RBF(kernel.length, "fixed") + WhiteKernel(
        kernel.noise, "fixed"
    )
    oracle = GaussianProcessRegressor(fixed).fit(scaled, table["gap"] - table["gap"].mean())
    values, deviations = oracle.predict(asked, return_std=True)[:2]
    numpy.testing.assert_allclose(result.predict(new), values + table["gap"].mean(), atol=1e-8)
    numpy.testing.assert_allclose(
        kernel.deviation(new[["a", "b", "third"]].to_numpy()), deviations, rtol=1e-6
    )


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
def test_clusters_are_held_out_together(kind: str) -> None:
    table = pool()
    result = GapEstimator(kind=kind, features=("a", "b"), clusters=("kind",)).fit(
        table, table["gap"]
    )
    rest = table[table["kind"] != "kind 2"]
    kernel, rows = result.kernel_, numpy.flatnonzero(table["kind"] != "kind 2")
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
    numpy.testing.assert_allclose(result.residuals_[held], residuals, atol=1e-9)
    alone = GapEstimator(kind=kind, features=("a", "b")).fit(table, table["gap"])
    if kernel is None:
        widths = [numpy.diff(each.predict_interval(table)).mean() for each in (result, alone)]
        assert widths[0] > widths[1]  # a kind that was not seen is farther off than a network


def test_intervals_are_as_wide_as_the_spread() -> None:
    table = pool()
    result = GapEstimator(features=("a", "b"), error_scale="error").fit(table, table["gap"])
    new = table.iloc[:2].assign(error=[0.01, 0.02], a=0.5, b=0.0)
    narrow, wide = numpy.diff(result.predict_interval(new)).ravel()
    # the refits differ a little from each other, so that the ratio is not quite the one of the spreads
    assert wide / narrow == pytest.approx(2.0, rel=0.1)
    with pytest.raises(InvalidInput, match="positive numbers; column 'error'"):
        result.predict_interval(new.assign(error=0.0))


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
    ours = fit_coefficients("ridge", x, y)
    assert ours[1:] * x.std(0) == pytest.approx(theirs.coef_, rel=1e-9, abs=1e-9)
    assert ours[0] + x @ ours[1:] == pytest.approx(theirs.predict(scaled), rel=1e-9)


def _region(x: numpy.ndarray) -> ApplicabilityDomain:
    return ApplicabilityDomain.fit(x, [f"x{k}" for k in range(x.shape[1])], {})


def _reasons(region: ApplicabilityDomain, x: list[list[float]]) -> list[list[str]]:
    values = numpy.array(x)
    return region.out_of_domain_reasons(values, values, {})


def test_a_reading_that_was_constant_must_stay_so() -> None:
    x = numpy.column_stack([numpy.linspace(0, 1, 12), numpy.full(12, 5000.0)])
    region = _region(x)
    assert _reasons(region, [[0.5, 5000.0]]) == [[]]
    assert _reasons(region, [[0.5, 6000.0]]) == [["x1 is 6000, above every fitted network"]]


def test_the_slack_lets_all_but_a_twentieth_of_the_fitted_networks_pass() -> None:
    """Oracle: leave each network out in turn and look how far outside the range of the others it lies."""
    x = numpy.random.default_rng(0).standard_t(2, size=(60, 3))
    shares = []
    for i in range(60):
        rest = numpy.delete(x, i, 0)
        low, high = rest.min(0), rest.max(0)
        shares.append(
            max(0.0, float((numpy.maximum(low - x[i], x[i] - high) / (high - low)).max()))
        )
    assert _region(x).slack == pytest.approx(sorted(shares)[57])
    assert 0.1 < _region(x).slack < 0.5
    assert _region(numpy.linspace(0, 1, 50)[:, None]).slack == 0.1
    assert _region(numpy.array([[0.0], [0.0], [0.0], [1.0]])).slack == 0.5


def test_a_direction_in_which_no_fitted_network_varied_is_infinitely_far() -> None:
    t = numpy.linspace(0, 1, 12)
    region = _region(numpy.column_stack([t, 2 * t]))
    assert numpy.isfinite(region.leverages(numpy.array([[0.5, 1.0]]))).all()
    assert numpy.isinf(region.leverages(numpy.array([[0.5, 0.9]]))).all()
