"""Robust sign error against a plain loop over pairs of networks, and by hand."""

from __future__ import annotations

import itertools
import math

import numpy
import pandas
import pytest

from gapscope.base.errors import InvalidInput
from gapscope.leaderboard.criteria import robust_sign_error

SETTINGS = ["width", "depth"]


def _table(seed: int, seeds: int = 6) -> pandas.DataFrame:
    rng = numpy.random.default_rng(seed)
    rows = [{"width": w, "depth": d} for w, d in itertools.product([16, 32, 64], [1, 2]) for _ in range(seeds)]
    table = pandas.DataFrame(rows)
    gap = 0.002 * table["width"] + 0.05 * table["depth"] + 0.03 * rng.normal(size=len(table))
    return table.assign(gap=gap, norm=gap + 0.05 * rng.normal(size=len(table)))


def oracle(table: pandas.DataFrame, n_test: int, least: float) -> tuple[list[float], int]:
    """Ordered pairs, as the authors' code loops; so every environment comes twice."""
    sums: dict[tuple, list[float]] = {}
    for a, b in itertools.permutations(table.to_dict("records"), 2):
        if sum(a[name] != b[name] for name in SETTINGS) != 1:
            continue
        difference = abs(a["gap"] - b["gap"])
        weight = max(0.0, 1 - 2 * math.exp(-2 * n_test * (difference / 2) ** 2)) ** 2
        weight = weight - 0.5 if weight > 0.5 else 0.0
        wrong = (1 - numpy.sign(a["norm"] - b["norm"]) * numpy.sign(a["gap"] - b["gap"])) / 2
        key = tuple(a[name] for name in SETTINGS) + tuple(b[name] for name in SETTINGS)
        entry = sums.setdefault(key, [0.0, 0.0, 0.0])
        entry[0] += weight
        entry[1] += weight**2
        entry[2] += weight * wrong
    kept = [wrong / total for total, squares, wrong in sums.values() if total and total**2 / squares >= least]
    return kept, (len(sums) - len(kept)) // 2


@pytest.mark.parametrize("n_test", [2000, 10_000])
def test_it_is_the_authors_loop(n_test: int) -> None:
    table = _table(0, seeds=8)
    kept, dropped = oracle(table, n_test, 12)
    found = robust_sign_error(table, "norm", hyperparameters=SETTINGS, n_test=n_test)
    assert found.environments == len(kept) / 2 > 0
    assert found.dropped == dropped
    assert found.mean == pytest.approx(numpy.mean(kept))
    assert found.maximum == pytest.approx(max(kept))
    assert found.percentile_90 == pytest.approx(numpy.percentile(kept, 90), abs=0.05)


def test_by_hand() -> None:
    table = pandas.DataFrame(
        {"width": [1, 2, 2, 2], "depth": [1, 1, 2, 3], "gap": [0.1, 0.2, 0.3, 0.9], "norm": [1.0, 2.0, 0.0, 0.0]}
    )
    found = robust_sign_error(table, "norm", hyperparameters=SETTINGS, n_test=None, least_evidence=1)
    # width 1 to 2: right; depth 1 to 2 and 1 to 3: wrong; depth 2 to 3: tied in the measure, a half
    assert found.by_hyperparameter["mean"].tolist() == [0.0, pytest.approx(2.5 / 3)]
    assert (found.mean, found.maximum, found.environments, found.dropped) == (pytest.approx(2.5 / 4), 1.0, 4, 0)


def test_negating_the_measure_turns_right_into_wrong() -> None:
    table = _table(1)
    one = robust_sign_error(table, "norm", hyperparameters=SETTINGS)
    other = robust_sign_error(table.assign(norm=-table["norm"]), "norm", hyperparameters=SETTINGS)
    assert one.mean == pytest.approx(1 - other.mean)


def test_too_little_evidence_leaves_nothing() -> None:
    one_seed = _table(0, seeds=1)
    found = robust_sign_error(one_seed, "norm", hyperparameters=SETTINGS)
    assert numpy.isnan([found.mean, found.maximum]).all()
    assert (found.environments, found.dropped) == (0, 9)
    tiny = robust_sign_error(one_seed, "norm", hyperparameters=SETTINGS, n_test=1, least_evidence=0)
    assert (tiny.environments, tiny.dropped) == (0, 9)


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(InvalidInput, match=r"n_test must lie in \[1, inf\); got 0"):
        robust_sign_error(_table(0), "norm", hyperparameters=SETTINGS, n_test=0)
    with pytest.raises(InvalidInput, match="norm and gap must be finite in every row"):
        robust_sign_error(_table(0).assign(norm=numpy.inf), "norm", hyperparameters=SETTINGS)
