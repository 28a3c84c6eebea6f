"""Coefficients of the gap models against scikit-learn and SciPy, and the region in its corners."""

from __future__ import annotations

import json

import numpy
import pytest
from scipy.optimize import nnls
from sklearn.linear_model import LinearRegression, RidgeCV

from gapscope.base.files import to_json
from gapscope.prediction.fits import RIDGE_STRENGTHS, ApplicabilityDomain, fit_coefficients
from gapscope.results.result import to_builtin


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


def test_a_tenth_of_the_range_is_allowed_on_each_side() -> None:
    region = _region(numpy.linspace(0, 1, 50)[:, None])
    found = _reasons(region, [[-0.11], [-0.01], [1.01], [1.11]])
    assert [bool(reasons) for reasons in found] == [True, False, False, True]


def test_the_slack_lets_all_but_a_twentieth_of_the_fitted_networks_pass() -> None:
    """Oracle: leave each network out in turn and look how far outside the range of the others it lies."""
    x = numpy.random.default_rng(0).standard_t(2, size=(60, 3))
    shares = []
    for i in range(60):
        rest = numpy.delete(x, i, 0)
        low, high = rest.min(0), rest.max(0)
        shares.append(max(0.0, float((numpy.maximum(low - x[i], x[i] - high) / (high - low)).max())))
    assert _region(x).slack == pytest.approx(sorted(shares)[57])
    assert 0.1 < _region(x).slack < 0.5
    assert _region(numpy.linspace(0, 1, 50)[:, None]).slack == 0.1
    assert _region(numpy.array([[0.0], [0.0], [0.0], [1.0]])).slack == 0.5


def test_a_direction_in_which_no_fitted_network_varied_is_infinitely_far() -> None:
    t = numpy.linspace(0, 1, 12)
    region = _region(numpy.column_stack([t, 2 * t]))
    assert numpy.isfinite(region.leverages(numpy.array([[0.5, 1.0]]))).all()
    assert numpy.isinf(region.leverages(numpy.array([[0.5, 0.9]]))).all()


def test_more_readings_than_networks_refuse_nothing_by_leverage() -> None:
    x = numpy.random.default_rng(0).normal(size=(4, 6))
    region = _region(x)
    assert region.largest_leverage == numpy.inf
    assert _reasons(region, [x.mean(0).tolist()]) == [[]]


@pytest.mark.parametrize("p", [0, 1, 3])
def test_json_and_back(p: int) -> None:
    x = numpy.random.default_rng(0).normal(size=(9, p))
    region = ApplicabilityDomain.fit(x, [f"x{k}" for k in range(p)], {"name": ["a", "b"]})
    again = ApplicabilityDomain.from_dict(json.loads(to_json(to_builtin(region))))
    new = numpy.random.default_rng(1).normal(size=(5, p))
    numpy.testing.assert_array_equal(again.leverages(new), region.leverages(new))
    families = {"name": ["a", "b", "c", "a", "a"]}
    assert again.out_of_domain_reasons(new, new, families) == region.out_of_domain_reasons(new, new, families)
    assert region.out_of_domain_reasons(new, new, families)[2][0] == "name is c; fitted on a, b"
