"""GS107 on columns of text: words and names that give the class away, and texts that predict it honestly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas
import pytest

import gapscope as gs
from gapscope.checks.registry import Finding, NotChecked
from gapscope.checks.result import CheckResult

N = 300
RNG = np.random.default_rng(0)
Y = RNG.choice(["setosa", "virginica", "other"], N)
X = np.where(Y == "setosa", 1.0, 0.0) + RNG.normal(size=N)
WORDS = np.array([f"w{a} went to {b} and v{c}" for a, b, c in RNG.integers(0, 60, (N, 3))])
STATUS = {"setosa": "approved", "virginica": "not approved", "other": "pending"}
LEAKS = {
    "status": [f"case {k}: {STATUS[y]} at {k % 7}" for k, y in enumerate(Y)],
    "id": [f"Iris-{y}-{k:03}" for k, y in enumerate(Y)],
    "note": [f"{words}, so {y.upper()}" for words, y in zip(WORDS, Y, strict=True)],
}


def checked(data: object, **options: object) -> object:
    result: CheckResult = gs.check(None, data, only=["GS107"], **options)  # pyright: ignore
    return [*result.findings, *result.fine, *result.not_checked][0]


@pytest.mark.parametrize("name", LEAKS)
@pytest.mark.parametrize("other", [X, WORDS], ids=["numbers", "texts"])
def test_texts_that_give_the_class_away_are_found(name: str, other: np.ndarray) -> None:
    found = checked(pandas.DataFrame({"a": other, name: LEAKS[name], "y": Y}), target="y")
    assert isinstance(found, Finding) and f"column {name} " in found.evidence


@pytest.mark.parametrize("other", [X, WORDS], ids=["numbers", "texts"])
def test_texts_that_predict_honestly_are_none(other: np.ndarray) -> None:
    topics = {"setosa": "red blue rose", "virginica": "blue iron rose", "other": "iron red old"}
    texts = [
        " ".join(RNG.choice([*topics[y].split(), "a", "b", "c"], 8)) + f" {k}"
        for k, y in enumerate(Y)
    ]
    found = checked(pandas.DataFrame({"a": other, "text": texts, "y": Y}), target="y")
    assert not isinstance(found, Finding)


def test_a_text_alone_and_texts_of_rare_classes_are_not_checked() -> None:
    alone = checked(pandas.DataFrame({"note": LEAKS["note"], "y": Y}), target="y")
    assert isinstance(alone, NotChecked) and "two columns" in alone.reason
    rare = pandas.DataFrame({"a": WORDS, "b": WORDS[::-1], "y": [f"k{k % 60}" for k in range(N)]})
    found = checked(rare, target="y")
    assert isinstance(found, NotChecked) and "per class" in found.reason


def test_files_are_checked_as_tables(tmp_path: Path) -> None:
    from gapscope.cli.arguments import read_labelled_table

    path = tmp_path / "t.csv"
    pandas.DataFrame({"a": X, "id": LEAKS["id"], "y": Y}).to_csv(path, index=False)
    assert isinstance(checked(read_labelled_table(path, "y").pair), Finding)
