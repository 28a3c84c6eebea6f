"""Scores over pairs of networks against plain loops over pairs, over groups, and over resamples."""

from __future__ import annotations

import itertools
import math
import warnings
from collections import Counter
from typing import Any

import numpy
import pandas
import pytest
from scipy.stats import kendalltau

from gapscope.leaderboard.paired_scores import PairedScores, competition_score, sign_errors

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


def scipy_tau(table: pandas.DataFrame) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tau: Any = kendalltau(table["norm"], table["gap"])
    return float(tau.statistic)


def granulated(table: pandas.DataFrame, settings: list[str]) -> tuple[float, int, int]:
    """Mean of scipy's taus over groups, then over hyperparameters, and the groups with and without a tau."""
    means, with_tau, without = [], 0, 0
    for name in settings:
        others = [other for other in settings if other != name]
        groups = [group for _, group in table.groupby(others)] if others else [table]
        taus = [scipy_tau(group) for group in groups if group[name].nunique() > 1]
        known = [tau for tau in taus if not math.isnan(tau)]
        with_tau += len(known)
        without += len(taus) - len(known)
        if known:
            means.append(numpy.mean(known))
    return float(numpy.mean(means)), with_tau, without


def entropy(counts: Counter) -> float:
    total = sum(counts.values())
    return -sum(count / total * math.log2(count / total) for count in counts.values())


def conditional_entropy(pairs: list[tuple], *positions: int) -> float:
    """H(positions | cell) of pairs (cell, sign of measure, sign of gap), every pair weighing the same."""
    value = 0.0
    for cell in {pair[0] for pair in pairs}:
        members = [pair for pair in pairs if pair[0] == cell]
        value += (
            len(members)
            / len(pairs)
            * entropy(Counter(tuple(pair[p] for p in positions) for pair in members))
        )
    return value


def mutual_information(table: pandas.DataFrame, settings: list[str]) -> float:
    best, rows = math.inf, table.to_dict("records")
    for subset in (
        subset for size in (0, 1, 2) for subset in itertools.combinations(settings, size)
    ):
        pairs = [
            (
                tuple((a[s], b[s]) for s in subset),
                numpy.sign(a["norm"] - b["norm"]),
                a["gap"] > b["gap"],
            )
            for a, b in itertools.permutations(rows, 2)
            if a["gap"] != b["gap"]
        ]
        if gap := conditional_entropy(pairs, 2):
            best = min(
                best, (conditional_entropy(pairs, 1) + gap - conditional_entropy(pairs, 1, 2)) / gap
            )
    return best


def one_by_one(table: pandas.DataFrame, settings: list[str]) -> dict[str, float]:
    return {
        "kendall": scipy_tau(table),
        "granulated": granulated(table, settings)[0],
        "mutual_information": mutual_information(table, settings),
    }


@pytest.mark.parametrize("settings", [SETTINGS, SETTINGS[:1]])
def test_permutations_are_columns(table: pandas.DataFrame, settings: list[str]) -> None:
    rng = numpy.random.default_rng(1)
    columns = numpy.stack(
        [table["norm"], *(rng.permutation(table["norm"]) for _ in range(2))], axis=1
    )
    result = PairedScores(table, "gap", settings).of(columns)
    for draw in range(columns.shape[1]):
        for name, value in one_by_one(table.assign(norm=columns[:, draw]), settings).items():
            assert result[name][draw] == pytest.approx(value, abs=1e-6), (name, draw)


def test_resamples_are_weights(table: pandas.DataFrame) -> None:
    weights = numpy.random.default_rng(2).multinomial(40, numpy.full(40, 1 / 40), size=3)
    result = PairedScores(table, "gap", SETTINGS).of(
        table[["norm"]].to_numpy(), weights.astype(float)
    )
    for draw, counts in enumerate(weights):
        repeated = table.iloc[numpy.repeat(numpy.arange(40), counts)]
        for name, value in one_by_one(repeated, SETTINGS).items():
            assert result[name][draw] == pytest.approx(value, abs=1e-6), (name, draw)


def test_groups_in_which_a_measure_is_constant_are_counted(table: pandas.DataFrame) -> None:
    pairs = PairedScores(table, "gap", SETTINGS)
    for column in (table["norm"], table["width"] * 1.0):
        expected = granulated(table.assign(norm=column), SETTINGS)
        assert pairs.count_groups(column.to_numpy()) == expected[1:]
    assert expected[2] > 0


def test_a_measure_of_one_setting_only_loses_its_pooled_tau() -> None:
    table = pandas.DataFrame(list(itertools.product([1, 2, 3], [1, 2])), columns=["width", "depth"])
    table = table.assign(
        gap=10 * table["width"] - table["depth"], norm=10.0 * table["width"] + table["depth"]
    )
    result = PairedScores(table, "gap", ["width", "depth"]).of(table[["norm"]].to_numpy())
    assert result["granulated"][0] == 0.0 and result["kendall"][0] > 0.5


def test_a_constant_measure_has_no_rank_and_a_setting_is_uninformative(
    table: pandas.DataFrame,
) -> None:
    pairs = PairedScores(table, "gap", SETTINGS)
    result = pairs.of(numpy.ones((40, 1)))
    assert numpy.isnan(result["kendall"][0]) and numpy.isnan(result["granulated"][0])
    assert result["mutual_information"][0] == pytest.approx(0, abs=1e-9)
    setting = (table["width"] * 10 + table["depth"]).to_numpy(dtype=float)[:, None]
    assert pairs.of(setting)["mutual_information"][0] == pytest.approx(0, abs=1e-9)


def competition_oracle(measure: list[float], gap: list[float], settings: list[tuple]) -> float:
    """The competition's score by loops over all ordered pairs, self-pairs among them, from its definition alone."""
    best = math.inf
    for chosen in itertools.combinations(range(len(settings[0])), 2):
        cells: dict[tuple, Counter] = {}
        for i, j in itertools.product(range(len(gap)), repeat=2):
            cell = tuple((settings[i][s], settings[j][s]) for s in chosen)
            cells.setdefault(cell, Counter())[measure[i] > measure[j], gap[i] > gap[j]] += 1
        information, unknown = 0.0, 0.0
        for counts in cells.values():
            of_measure = Counter(
                {sign: counts[sign, False] + counts[sign, True] for sign in (False, True)}
            )
            of_gap = Counter(
                {sign: counts[False, sign] + counts[True, sign] for sign in (False, True)}
            )
            known = [entropy(+part) for part in (of_measure, of_gap, counts)]
            information += known[0] + known[1] - known[2]
            unknown += -sum(
                share * math.log2(share + 1e-12)
                for share in (count / sum(of_gap.values()) for count in of_gap.values())
                if share + 1e-12 > 0
            )
        best = min(best, information / unknown)
    return best


def test_the_competitions_score_is_that_of_a_loop_over_pairs_and_changes_when_negated(
    pgdl: pandas.DataFrame,
) -> None:
    names = [str(column) for column in pgdl.columns if str(column).startswith("hp.")]
    settings = list(pgdl[names].itertuples(index=False, name=None))
    table = pgdl.assign(negated=-pgdl["m.wcv"], opposite=-pgdl["gap"], perfect=pgdl["gap"])
    expected = competition_oracle(pgdl["m.rbf"].tolist(), pgdl["gap"].tolist(), settings)
    assert competition_score(table, "m.rbf", "gap", names) == pytest.approx(expected, abs=1e-9)
    # the competition's own numbers
    scores = {
        "m.rbf": 28.661,
        "m.vc_dim": 0.039,
        "m.wcv": 27.745,
        "negated": 24.666,
        "opposite": 90.1,
        "perfect": 100,
    }
    for name, score in scores.items():
        assert 100 * competition_score(table, name, "gap", names) == pytest.approx(
            score, abs=0.05
        ), name
    assert math.isnan(competition_score(table, "m.rbf", "gap", names[:1]))


def sign_error_oracle(table: pandas.DataFrame, n_test: int) -> list[float]:
    """Ordered pairs, as the authors' code loops; so every environment comes twice."""
    settings, sums = ["width", "depth"], dict[tuple, list[float]]()
    for a, b in itertools.permutations(table.to_dict("records"), 2):
        if sum(a[name] != b[name] for name in settings) != 1:
            continue
        weight = max(0.0, 1 - 2 * math.exp(-2 * n_test * (abs(a["gap"] - b["gap"]) / 2) ** 2)) ** 2
        weight = weight - 0.5 if weight > 0.5 else 0.0
        wrong = (1 - numpy.sign(a["norm"] - b["norm"]) * numpy.sign(a["gap"] - b["gap"])) / 2
        entry = sums.setdefault(
            (*(a[name] for name in settings), *(b[name] for name in settings)), [0.0, 0.0]
        )
        entry[0] += weight
        entry[1] += weight * wrong
    return [wrong / total for total, wrong in sums.values() if total]


@pytest.mark.parametrize("n_test", [500, 10_000])
def test_sign_errors_are_those_of_the_authors_loop(n_test: int) -> None:
    rng = numpy.random.default_rng(0)
    rows = [
        {"width": w, "depth": d}
        for w, d in itertools.product([16, 32, 64], [1, 2])
        for _ in range(4)
    ]
    table = pandas.DataFrame(rows)
    gap = 0.002 * table["width"] + 0.05 * table["depth"] + 0.03 * rng.normal(size=len(table))
    table = table.assign(gap=gap, norm=gap + 0.05 * rng.normal(size=len(table)))
    result = sign_errors(table, "norm", "gap", ["width", "depth"], n_test)
    assert sorted(numpy.repeat(result[:, 2], 2)) == pytest.approx(
        sorted(sign_error_oracle(table, n_test))
    )
    other = sign_errors(
        table.assign(norm=-table["norm"]), "norm", "gap", ["width", "depth"], n_test
    )
    assert result[:, 2] == pytest.approx(1 - other[:, 2])


def test_sign_errors_by_hand() -> None:
    table = pandas.DataFrame(
        {
            "width": [1, 2, 2, 2],
            "depth": [1, 1, 2, 3],
            "gap": [0.1, 0.2, 0.3, 0.9],
            "norm": [1.0, 2.0, 0.0, 0.0],
        }
    )
    result = sign_errors(table, "norm", "gap", ["width", "depth"], None)
    # width 1 to 2: right; depth 1 to 2 and 1 to 3: wrong; depth 2 to 3: tied in the measure, a half
    assert result.tolist() == [[0, 1, 0.0], [1, 2, 1.0], [1, 3, 1.0], [2, 3, 0.5]]
    assert len(sign_errors(table, "norm", "gap", ["width", "depth"], 1)) == 0
    assert len(sign_errors(table, "norm", "gap", [], None)) == 0
