"""Granulated tau against a plain loop over scipy's tau."""

from __future__ import annotations

import itertools
import warnings

import numpy
import pandas
import pytest
from scipy import stats

from gapscope.base.errors import InvalidInput
from gapscope.leaderboard.criteria import granulated_kendall
from tables import rows_of

SETTINGS = {"width": [16, 32, 64], "depth": [1, 2], "noise": [0.0, 0.5]}


def grid(seed: int) -> pandas.DataFrame:
    """A full grid with two seeds a configuration."""
    rng = numpy.random.default_rng(seed)
    rows = [dict(zip(SETTINGS, values, strict=True)) for values in itertools.product(*SETTINGS.values())] * 2
    table = pandas.DataFrame(rows)
    gap = 0.01 * table["width"] + table["noise"] + rng.normal(size=len(table))
    return table.assign(
        gap=gap, norm=(gap + rng.normal(size=len(table))).round(1), count=table["width"] * table["depth"]
    )


def oracle(table: pandas.DataFrame, measure: str) -> tuple[float, int]:
    means, dropped = [], 0
    for name in SETTINGS:
        taus = []
        for _, group in table.groupby([other for other in SETTINGS if other != name]):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tau = float(stats.kendalltau(group[measure], group["gap"]).statistic)  # type: ignore[attr-defined]
            if numpy.isnan(tau):
                dropped += 1
            else:
                taus.append(tau)
        if taus:
            means.append(numpy.mean(taus))
    return float(numpy.mean(means)), dropped


@pytest.mark.parametrize("measure", ["norm", "count"])
@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_mean_of_scipys_taus(measure: str, seed: int) -> None:
    table = grid(seed)
    found = granulated_kendall(table, measure, hyperparameters=list(SETTINGS))
    value, dropped = oracle(table, measure)
    assert found.value == pytest.approx(value, abs=1e-12)
    assert sum(found.by_hyperparameter["dropped"].tolist()) == dropped


def test_constant_groups_are_dropped_and_counted() -> None:
    found = granulated_kendall(grid(0), "count", hyperparameters=list(SETTINGS)).by_hyperparameter
    noise, width = rows_of(found)["noise"], rows_of(found)["width"]
    assert (noise["groups"], noise["dropped"]) == (0, 6) and numpy.isnan(noise["tau"])
    assert (width["groups"], width["dropped"]) == (4, 0)


def test_a_measure_of_one_setting_only_loses_its_pooled_tau() -> None:
    table = pandas.DataFrame(list(itertools.product([1, 2, 3], [1, 2])), columns=["width", "depth"])
    table = table.assign(gap=10 * table["width"] - table["depth"], norm=10 * table["width"] + table["depth"])
    found = granulated_kendall(table, "norm", hyperparameters=["width", "depth"])
    assert found.by_hyperparameter["tau"].tolist() == [1.0, -1.0]
    assert found.value == 0.0
    assert stats.kendalltau(table["norm"], table["gap"]).statistic > 0.5  # type: ignore[attr-defined]


def test_networks_without_a_finite_reading_are_left_out() -> None:
    table = grid(0)
    holes = pandas.concat([table, table.iloc[:3].assign(norm=numpy.nan), table.iloc[:3].assign(norm=numpy.inf)])
    expected = granulated_kendall(table, "norm", hyperparameters=list(SETTINGS))
    assert granulated_kendall(holes, "norm", hyperparameters=list(SETTINGS)).value == expected.value


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(InvalidInput, match="hyperparameters must name the columns that were varied; got none"):
        granulated_kendall(grid(0), "norm", hyperparameters=[])
    with pytest.raises(InvalidInput, match=r"must have a column 'widht'.*Did you mean 'width'\?"):
        granulated_kendall(grid(0), "norm", hyperparameters=["widht"])
