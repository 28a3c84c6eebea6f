"""Categories that occur in the test table alone: a finding (GS110), or a note where they are few."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas
import pytest

import gapscope as gs
from gapscope.checks.result import CheckResult


def _tables(share: float, categories: str = "abc") -> tuple[pandas.DataFrame, pandas.DataFrame]:
    rng = np.random.default_rng(0)

    def table(n: int) -> pandas.DataFrame:
        return pandas.DataFrame(
            {
                "value": rng.normal(size=n),
                "region": rng.choice(list(categories), n),
                "price": rng.normal(size=n),
            }
        )

    train, test = table(600), table(300)
    test.loc[: int(300 * share) - 1, "region"] = "north"
    return train, test


def _check(train: Any, test: Any) -> CheckResult:
    return gs.check(None, train, target="price", test=test, only=["GS110"])


@pytest.mark.parametrize("share", [0.03, 0.15])
def test_a_category_of_the_test_table_alone_is_a_finding(share: float) -> None:
    result = _check(*_tables(share))
    evidence = result.findings[0].evidence
    assert result.findings[0].code == "GS110"
    assert evidence.startswith(f"region: {share:.0%}".replace("%", " %"))
    assert "'north'" in evidence


def test_few_rows_with_a_new_category_are_a_note() -> None:
    result = _check(*_tables(0.01))
    assert not result.findings
    assert any("1.0 % of the rows" in note and "'north'" in note for note in result.notes)


def test_the_same_categories_are_fine() -> None:
    result = _check(*_tables(0.0))
    assert not result.findings
    assert not any("first lacks" in note for note in result.notes)


def test_new_values_of_a_column_of_rare_ones_are_expected() -> None:
    """Of 600 rows with values among 400, as many have a new value in a second table like the first."""
    train, test = _tables(0.0)
    rng = np.random.default_rng(1)
    train["city"] = rng.integers(0, 400, 600).astype(str)
    test["city"] = rng.integers(0, 400, 300).astype(str)
    train["city"] = "c" + train["city"]
    test["city"] = "c" + test["city"]
    assert not _check(train, test).findings


def test_labels_are_searched_with_a_note() -> None:
    train, test = _tables(0.2)
    issues = gs.find_label_issues(None, train, target="price", test=test)
    assert any("20.0 % of the rows" in note for note in issues.notes)


def test_numbers_as_text_and_missing_values_are_no_new_categories() -> None:
    train, test = _tables(0.0)
    train["region"] = np.resize(["1", "2", "x"], len(train))
    test["region"] = np.resize(np.array([1.0, 2.0, None, "x"], dtype=object), len(test))
    assert not any("first lacks" in note for note in _check(train, test).notes)
