"""Conditional mutual information against plain loops over pairs, and the defects of the competition's score."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy
import pandas
import pytest

from gapscope.base.errors import InvalidInput
from gapscope.leaderboard import conditional_mutual_information


def _table(seed: int, n: int = 24) -> pandas.DataFrame:
    rng = numpy.random.default_rng(seed)
    gap = rng.normal(size=n)
    return pandas.DataFrame(
        {
            "width": numpy.arange(n) % 3,
            "depth": numpy.arange(n) // 3 % 2,
            "gap": gap,
            "norm": (gap + rng.normal(size=n)).round(1),
        }
    )


def _entropy(counter: Counter) -> float:
    total = sum(counter.values())
    return -sum(count / total * math.log2(count / total) for count in counter.values())


def _conditional(pairs: list[tuple], *positions: int) -> float:
    """H(positions | cell) of pairs (cell, sign of measure, sign of gap), every pair weighing the same."""
    total, value = len(pairs), 0.0
    for cell in {pair[0] for pair in pairs}:
        members = [pair for pair in pairs if pair[0] == cell]
        value += len(members) / total * _entropy(Counter(tuple(pair[p] for p in positions) for pair in members))
    return value


def symmetric_oracle(table: pandas.DataFrame, settings: list[str]) -> float:
    best = math.inf
    rows = table.to_dict("records")
    for size in (0, 1, 2):
        for subset in itertools.combinations(settings, size):
            pairs = [
                (tuple((a[s], b[s]) for s in subset), numpy.sign(a["norm"] - b["norm"]), a["gap"] > b["gap"])
                for a, b in itertools.permutations(rows, 2)
                if a["gap"] != b["gap"]
            ]
            gap = _conditional(pairs, 2)
            best = min(best, (_conditional(pairs, 1) + gap - _conditional(pairs, 1, 2)) / gap)
    return best


@pytest.mark.parametrize("seed", range(3))
def test_the_symmetric_version_is_that_of_a_loop_over_pairs(seed: int) -> None:
    table = _table(seed)
    found = conditional_mutual_information(table, "norm", hyperparameters=["width", "depth"])
    assert found.value == pytest.approx(symmetric_oracle(table, ["width", "depth"]), abs=1e-12)


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
            of_measure = Counter({sign: counts[sign, False] + counts[sign, True] for sign in (False, True)})
            of_gap = Counter({sign: counts[False, sign] + counts[True, sign] for sign in (False, True)})
            known = [_entropy(+part) for part in (of_measure, of_gap, counts)]
            information += known[0] + known[1] - known[2]
            unknown += -sum(
                share * math.log2(share + 1e-12)
                for share in (count / sum(of_gap.values()) for count in of_gap.values())
                if share + 1e-12 > 0
            )
        best = min(best, information / unknown)
    return best


@pytest.mark.parametrize(("measure", "score"), [("m.rbf", 28.661), ("m.vc_dim", 0.039)])
def test_the_competitions_score_is_that_of_a_loop_over_pairs(
    pgdl: pandas.DataFrame, measure: str, score: float
) -> None:
    names = [str(column) for column in pgdl.columns if str(column).startswith("hp.")]
    settings = list(pgdl[names].itertuples(index=False, name=None))
    expected = competition_oracle(pgdl[measure].tolist(), pgdl["gap"].tolist(), settings)
    found = conditional_mutual_information(pgdl, measure, hyperparameters=names, version="pgdl_exact")
    assert found.value == pytest.approx(expected, abs=1e-9)
    assert 100 * found.value == pytest.approx(score, abs=6e-4)


def test_negating_a_measure_changes_the_competitions_score_only(pgdl: pandas.DataFrame) -> None:
    settings = [column for column in pgdl.columns if column.startswith("hp.")]
    table = pgdl.assign(negated=-pgdl["m.wcv"], opposite=-pgdl["gap"], perfect=pgdl["gap"])

    def score(measure: str, version: str) -> float:
        found = conditional_mutual_information(table, measure, hyperparameters=settings, version=version)  # type: ignore[arg-type]
        return 100 * found.value

    assert score("m.wcv", "pgdl_exact") == pytest.approx(27.745, abs=5e-4)
    assert score("negated", "pgdl_exact") == pytest.approx(24.666, abs=5e-4)
    assert score("opposite", "pgdl_exact") == pytest.approx(90.1, abs=0.05)
    assert score("perfect", "pgdl_exact") == pytest.approx(100, abs=1e-6)
    assert score("m.wcv", "symmetric") == pytest.approx(score("negated", "symmetric"), abs=1e-9)
    assert score("opposite", "symmetric") == pytest.approx(100, abs=1e-9)


def test_a_measure_that_is_a_setting_says_nothing_beyond_it() -> None:
    table = _table(0).assign(count=lambda rows: rows["width"] * 10 + rows["depth"], constant=1.0)
    for name in ("count", "constant"):
        found = conditional_mutual_information(table, name, hyperparameters=["width", "depth"])
        assert found.value == pytest.approx(0, abs=1e-12)
    assert conditional_mutual_information(table, "count", hyperparameters=[]).value >= 0


def test_the_set_conditioned_on_is_named() -> None:
    table = _table(0).assign(count=lambda rows: rows["width"] + 0.0)
    found = conditional_mutual_information(table, "count", hyperparameters=["depth", "width"])
    assert "width" in found.conditioned_on


def test_what_is_wrong_is_said() -> None:
    table = _table(0)
    with pytest.raises(InvalidInput, match=r"version must be one of .* got 'pgdl_exakt'\. Did you mean 'pgdl_exact'\?"):
        conditional_mutual_information(table, "norm", hyperparameters=["width"], version="pgdl_exakt")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="needs at least two hyperparameters; got 1"):
        conditional_mutual_information(table, "norm", hyperparameters=["width"], version="pgdl_exact")
    with pytest.raises(InvalidInput, match="norm and gap must be finite in every row"):
        conditional_mutual_information(table.assign(norm=numpy.nan), "norm", hyperparameters=["width"])
