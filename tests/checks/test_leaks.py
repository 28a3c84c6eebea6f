"""GS107 on tables: text, categories, several columns that leak, regression."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas
import pytest
import torch
from sklearn.tree import DecisionTreeClassifier

import gapscope as gs
from gapscope.checks.registry import Finding

N = 300
RNG = np.random.default_rng(0)
A, B = RNG.normal(size=(2, N))
Y = np.where(A + RNG.normal(size=N) > 0, "yes", "no")
NOISE = RNG.normal(size=N)
LEAKS: dict[str, dict[str, Any]] = {
    "text": {"leak": np.where(Y == "yes", "A7", "B2")},
    "categories": {"leak": pandas.Categorical(Y)},
    "five values": {
        "leak": np.where(Y == "yes", RNG.choice(list("abc"), N), RNG.choice(list("de"), N))
    },
    "truth": {"leak": Y == "yes"},
    "numbers": {"leak": (Y == "yes") + NOISE / 100},
    "copies": {"leak": (Y == "yes") + NOISE / 100, "leaky": 1 - 3 * ((Y == "yes") + NOISE / 100)},
    "number and text": {
        "leak": (Y == "yes") + NOISE / 100,
        "leaky": np.where(Y == "yes", "A", "B"),
    },
    "date": {
        "leak": pandas.Timestamp("2024-01-01")
        + pandas.to_timedelta(100 * (Y == "yes") + np.abs(NOISE), unit="D")
    },
}


def checked(data: Any, **options: Any) -> Any:
    """Return the only outcome of GS107."""
    result = gs.check(None, data, only=["GS107"], **options)
    return [*result.findings, *result.fine, *result.not_checked][0]


@pytest.mark.parametrize("kind", LEAKS)
def test_columns_that_leak_are_named_as_in_the_table(kind: str) -> None:
    table = pandas.DataFrame({"a": A, "b": B, **LEAKS[kind], "y": Y})
    found = checked(table, target="y")
    assert isinstance(found, Finding)
    for name in LEAKS[kind]:
        assert f"column {name}" in found.evidence
    assert found.cost is not None and 0.15 < found.cost < 0.4


@pytest.mark.parametrize("as_array", [False, True])
def test_indicator_columns_of_the_users_own_are_one_category(as_array: bool) -> None:
    table = pandas.get_dummies(pandas.DataFrame({"a": A, "b": B, "leak": LEAKS["text"]["leak"]}))
    x: Any = table.to_numpy(dtype=float) if as_array else table.astype(float)
    found = checked((x, (Y == "yes").astype(int)))
    assert isinstance(found, Finding) and "together" in found.evidence


@pytest.mark.parametrize(
    "column", [{}, {"id": [f"c{i}" for i in RNG.integers(0, N // 2, N)]}, {"c": RNG.choice(list("ab"), N)}]
)  # fmt: skip
def test_other_columns_are_fine(column: dict[str, Any]) -> None:
    found = checked(pandas.DataFrame({"a": A, "b": B, **column, "y": Y}), target="y")
    assert found.code == "GS107" and not isinstance(found, Finding)


@pytest.mark.parametrize("leak", [lambda y: 2 * y + 1, lambda y: -(y**3), lambda y: np.round(y, 2)])
def test_leaks_of_regression_targets_are_found(leak: Any) -> None:
    y = A + NOISE
    table = pandas.DataFrame({"a": A, "b": B, "y": y})
    assert not isinstance(checked(table, target="y"), Finding)
    found = checked(table.assign(leak=leak(y)), target="y")
    assert isinstance(found, Finding) and "column leak alone" in found.evidence


def test_targets_that_are_not_looked_at_are_not_cleared() -> None:
    x = torch.randn(60, 3)
    for y in (torch.randn(60, 2), (torch.randn(60, 3) > 0).float()):
        result = gs.check(None, (x, y), only=["GS107"])
        assert result.not_checked and not result.fine


def test_a_mapping_of_one_table_is_checked() -> None:
    x = torch.from_numpy(np.stack([A, B, (Y == "yes") + NOISE / 100], 1)).float()
    y = torch.from_numpy((Y == "yes").astype(int))
    assert isinstance(checked(({"x": x}, y)), Finding)


def test_labels_are_not_judged_by_a_column_that_holds_them() -> None:
    table = pandas.DataFrame({"a": A, "b": B, "leak": Y == "yes", "y": Y})
    result = gs.check(None, table, target="y")
    reasons = {outcome.code: outcome.reason for outcome in result.not_checked}
    for code in ("GS102", "GS103", "GS106"):
        assert "column leak" in reasons[code] and "GS107" in reasons[code]
    ignored = gs.check(None, table, target="y", ignore=["GS107"])
    assert {"GS102", "GS103", "GS106"} <= {outcome.code for outcome in ignored.fine}


def test_a_score_through_a_column_that_holds_the_label_clears_nothing() -> None:
    frame = pandas.DataFrame({"a": A, "b": B, "leak": Y == "yes"})
    result = gs.check(DecisionTreeClassifier(random_state=0).fit(frame, Y), (frame, Y))
    assert result.codes == ("GS107",) and result.account is not None
    assert result.account.expected is not None and result.account.expected.value > 0.99
    assert "GS107" in result.account.expected.note
    assert not {"GS401", "GS402"} & {outcome.code for outcome in result.fine}
