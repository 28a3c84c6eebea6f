"""Scores of all draws at once against the same scores of one table after another."""

from __future__ import annotations

from typing import Any

import numpy
import pandas
import pytest
from scipy.stats import kendalltau

from gapscope.leaderboard import conditional_mutual_information
from gapscope.leaderboard.criteria import granulated_kendall
from gapscope.leaderboard.paired_scores import PairedScores

SETTINGS = ["width", "depth", "rate"]


@pytest.fixture(scope="module")
def table() -> pandas.DataFrame:
    rng = numpy.random.default_rng(0)
    n = numpy.arange(40)
    gap = rng.normal(size=40).round(1)
    return pandas.DataFrame(
        {"width": n % 3, "depth": n // 3 % 2, "rate": rng.choice(["low", "high"], 40), "gap": gap,
         "norm": (gap + rng.normal(size=40)).round(1)}
    )  # fmt: skip


def one_by_one(table: pandas.DataFrame, settings: list[str]) -> dict[str, float]:
    tau: Any = kendalltau(table["norm"], table["gap"])
    return {
        "kendall": float(tau.statistic),
        "granulated": granulated_kendall(table, "norm", hyperparameters=settings).value,
        "mutual_information": conditional_mutual_information(table, "norm", hyperparameters=settings).value,
    }


@pytest.mark.parametrize("settings", [SETTINGS, SETTINGS[:1]])
def test_permutations_are_columns(table: pandas.DataFrame, settings: list[str]) -> None:
    rng = numpy.random.default_rng(1)
    columns = numpy.stack([table["norm"], *(rng.permutation(table["norm"]) for _ in range(3))], axis=1)
    found = PairedScores(table, "gap", settings).of(columns)
    for draw in range(columns.shape[1]):
        for name, value in one_by_one(table.assign(norm=columns[:, draw]), settings).items():
            assert found[name][draw] == pytest.approx(value, abs=1e-6), (name, draw)


def test_resamples_are_weights(table: pandas.DataFrame) -> None:
    weights = numpy.random.default_rng(2).multinomial(40, numpy.full(40, 1 / 40), size=4)
    found = PairedScores(table, "gap", SETTINGS).of(table[["norm"]].to_numpy(), weights.astype(float))
    for draw, counts in enumerate(weights):
        repeated = table.iloc[numpy.repeat(numpy.arange(40), counts)]
        for name, value in one_by_one(repeated, SETTINGS).items():
            assert found[name][draw] == pytest.approx(value, abs=1e-6), (name, draw)


def test_a_constant_measure_has_no_rank_and_no_information(table: pandas.DataFrame) -> None:
    found = PairedScores(table, "gap", SETTINGS).of(numpy.ones((40, 1)))
    assert numpy.isnan(found["kendall"][0]) and numpy.isnan(found["granulated"][0])
    assert found["mutual_information"][0] == pytest.approx(0, abs=1e-9)
