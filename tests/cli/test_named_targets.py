"""`--target` names a column of the table that `module:function` returns."""

from __future__ import annotations

from pathlib import Path

import pandas
import pytest
import typer

from gapscope.cli.factories import split_returned

TABLE = pandas.DataFrame({"kind": [*"abab"], "size": [1.0, 2.0, 3.0, 4.0]})


def test_a_column_of_a_table() -> None:
    inputs, targets = split_returned(TABLE, "kind", "m.py:table")
    assert list(inputs) == ["size"] and targets.tolist() == [*"abab"]
    assert split_returned(TABLE, None, "m.py:table") is TABLE


def test_inputs_and_targets_have_no_column_names() -> None:
    pair = (TABLE[["size"]], TABLE["kind"])
    with pytest.raises(typer.BadParameter, match=r"m\.py:pair"):
        split_returned(pair, "kind", "m.py:pair")
    # the column of the table of --test
    assert split_returned(pair, "kind", "m.py:pair", Path("test.csv")) is pair
