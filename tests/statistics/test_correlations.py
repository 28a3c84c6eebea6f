"""Correlations against scipy, intervals against simulation."""

from __future__ import annotations

import numpy
import pandas
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from gapscope.base.errors import InvalidInput
from gapscope.statistics.correlations import correlations
from support.tables import rows_of


def _table(n: int, slope: float, seed: int) -> pandas.DataFrame:
    rng = numpy.random.default_rng(seed)
    gap = rng.normal(size=n)
    return pandas.DataFrame(
        {
            "gap": gap,
            "norm": slope * gap + rng.normal(size=n),
            "steps": rng.integers(0, 4, size=n) + (gap > 0),
            "parameter_count": rng.integers(1, 5, size=n) * 1e6,
        }
    )


@settings(max_examples=30, deadline=None)
@given(n=st.integers(5, 40), seed=st.integers(0, 2**32 - 1))
def test_coefficients_are_scipys_also_with_ties(n: int, seed: int) -> None:
    table = _table(n, 0.7, seed)
    assume(table["steps"].nunique() > 1)  # SciPy warns of a constant
    result = correlations(table, ["norm", "steps"], n_bootstrap=1)
    for name in ("norm", "steps"):
        x, y = table[name], table["gap"]
        assert result.loc[name, "pearson"] == pytest.approx(stats.pearsonr(x, y)[0], abs=1e-12)
        assert result.loc[name, "spearman"] == pytest.approx(stats.spearmanr(x, y)[0], abs=1e-12)
        assert result.loc[name, "kendall"] == pytest.approx(stats.kendalltau(x, y)[0], abs=1e-12)


def test_a_resample_of_counts_equals_the_repeated_networks() -> None:
    """The bootstrap works on counts; here they are checked against scipy on a table with the rows repeated."""
    from gapscope.statistics.correlations import COEFFICIENTS

    table = _table(12, 0.7, 0)
    counts = numpy.random.default_rng(1).multinomial(12, numpy.full(12, 1 / 12), size=5)
    oracles = {"pearson": stats.pearsonr, "spearman": stats.spearmanr, "kendall": stats.kendalltau}
    for name, oracle in oracles.items():
        x, y = table["steps"].to_numpy(float), table["gap"].to_numpy(float)
        expected = [oracle(numpy.repeat(x, row), numpy.repeat(y, row))[0] for row in counts]
        numpy.testing.assert_allclose(
            COEFFICIENTS[name](counts.astype(float), x, y), expected, atol=1e-12
        )


def test_values_that_are_not_finite_are_dropped_and_counted() -> None:
    table = _table(20, 1.0, 0)
    whole = correlations(table.iloc[3:], ["norm"])
    table["norm"] = [numpy.nan, numpy.inf, -numpy.inf, *table["norm"].iloc[3:]]
    result = rows_of(correlations(table, ["norm"]))
    assert (result["norm"]["n"], result["norm"]["dropped"]) == (17, 3)
    assert result["norm"]["kendall"] == rows_of(whole)["norm"]["kendall"]
    assert result["parameter_count"]["dropped"] == 0


def test_huge_readings_do_not_overflow() -> None:
    table = _table(20, 1.0, 0)
    result = rows_of(correlations(table.assign(norm=numpy.exp(table["norm"]) * 1e300), ["norm"]))
    assert result["norm"]["spearman"] == pytest.approx(
        stats.spearmanr(table["norm"], table["gap"])[0]
    )
    assert numpy.isfinite(result["norm"]["pearson"])


@pytest.mark.thorough
def test_intervals_cover_about_as_often_as_they_say() -> None:
    """Bivariate normal with correlation 1/sqrt(2): Kendall's tau is 2/pi asin(rho) = 0.5 exactly."""
    truth = {"pearson": 2**-0.5, "spearman": 6 / numpy.pi * numpy.arcsin(2**-1.5), "kendall": 0.5}
    covered = {name: 0 for name in truth}
    for seed in range(150):
        row = correlations(_table(60, 1.0, seed), ["norm"], n_bootstrap=300, level=0.9).loc["norm"]
        for name, value in truth.items():
            covered[name] += bool(row[f"{name}_low"] <= value <= row[f"{name}_high"])
    assert all(0.82 <= count / 150 <= 0.97 for count in covered.values()), covered


def test_wrong_input_raises_with_facts() -> None:
    table = _table(5, 1.0, 0)
    with pytest.raises(InvalidInput, match=r"Did you mean 'norm'\?"):
        correlations(table, ["nrom"])
    with pytest.raises(InvalidInput, match="column names; got 'norm'"):
        correlations(table, "norm")
