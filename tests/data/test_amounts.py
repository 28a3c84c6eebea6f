"""Integer targets of a table that are amounts: read by one rule, whether or not their column is named as the target."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas
import pytest

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.data.frames import encode_inputs
from gapscope.data.table_targets import NOTE, as_targets, split_frame


@pytest.fixture(scope="module")
def prices() -> pandas.DataFrame:
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({"size": rng.normal(size=200), "age": rng.normal(size=200)})
    price = 500_000 + 100_000 * frame["size"] + 20_000 * rng.normal(size=200)
    return frame.assign(price=price.round().astype(int))


def _pair(frame: pandas.DataFrame) -> tuple[pandas.DataFrame, pandas.Series]:
    return frame.drop(columns="price"), frame["price"]


@pytest.mark.parametrize("function", [gs.forecast_accuracy, gs.out_of_sample])
def test_integer_amounts_beside_a_table_are_regressed(
    function: Any, prices: pandas.DataFrame
) -> None:
    result = function(None, _pair(prices))
    assert result.score_name == "R^2" and result.score > 0.8
    assert any("read as numbers" in note for note in result.notes)


def test_the_rule_is_that_of_a_named_target(prices: pandas.DataFrame) -> None:
    by_name = gs.find_label_issues(None, prices, target="price")
    by_pair = gs.find_label_issues(None, _pair(prices))
    assert by_name.indices.tolist() == by_pair.indices.tolist()
    test = prices.iloc[:40]
    named = gs.check(None, prices, target="price", test=test, only=["GS101", "GS110"])
    paired = gs.check(None, _pair(prices), test=_pair(test), only=["GS101", "GS110"])
    assert [f.evidence for f in named.findings] == [f.evidence for f in paired.findings]


def test_codes_of_classes_stay_classes(prices: pandas.DataFrame) -> None:
    x, _ = _pair(prices)
    for codes in (np.resize([10_000, 20_000, 30_000_000], 200), np.arange(200) % 30 * 1000):
        _, y = encode_inputs((x, codes))[0]
        assert np.asarray(y).dtype.kind == "i"
    missing = prices["price"].where(prices["age"] > 0, -100)
    _, y = encode_inputs((x, missing))[0]
    assert y.dtype.kind == "i"


def test_the_note_on_integers_is_kept_with_a_named_target(prices: pandas.DataFrame) -> None:
    checked = gs.check(None, prices, target="price", only=["GS101"])
    issues = gs.find_label_issues(None, prices, target="price", time_budget=1)
    for result in (checked, issues):
        assert sum("read as numbers (regression)" in note for note in result.notes) == 1


def test_negative_integers_are_numbers_unless_they_are_two_signs(prices: pandas.DataFrame) -> None:
    degrees = (4 * prices["size"]).round().clip(-8, 8).astype(int)
    result = gs.check(None, prices.assign(price=degrees), target="price", only=["GS101"])
    assert any("from -8 to 8, read as numbers" in note for note in result.notes)
    assert as_targets(degrees)[0].dtype == float
    for codes in (degrees.gt(0) * 2 - 1, degrees.clip(0, 3).replace(3, -100)):
        assert as_targets(codes)[0] is codes and not as_targets(codes)[1]


def test_minus_one_beside_numbered_classes_is_refused() -> None:
    frame = pandas.DataFrame({"x": range(40, 0, -1), "y": [k % 4 - 1 for k in range(40)]})
    with pytest.raises(InvalidInput, match=r"10 of 40.*0 to 2.*-100"):
        gs.check(None, frame, target="y", only=["GS101"])
    with pytest.raises(InvalidInput, match=r"test: .*-1 in 10"):
        gs.check(None, frame.assign(y=abs(frame["y"])), target="y", test=frame, only=["GS101"])
    numbers = frame.assign(y=frame["y"].astype(float))
    assert split_frame(frame, "y", split_frame(numbers, "y")[1])[1].dtype == float
    codes = frame["y"].clip(upper=1)
    labels = split_frame(frame.assign(y=codes), "y")[1]
    assert labels.dtype == float and "-100" in labels.attrs[NOTE]
    marked = frame.assign(y=frame["y"].replace(-1, -100))
    assert gs.check(None, marked, target="y", only=["GS101"]).task == "classifier"
