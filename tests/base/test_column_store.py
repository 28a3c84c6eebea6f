"""Columns against pandas' own table of the same rows."""

from __future__ import annotations

import json
import random
from typing import Any

import pandas
import pytest

from gapscope.base.column_store import ColumnStore

VALUES: dict[str, list[Any]] = {
    "whole": [1, 2, None], "float": [1.5, 2.0], "text": ["x", None, "y"], "truth": [True, False],
    "mixed": [1, 2.5], "equal": [1, True], "not finite": [float("nan"), 1.0, float("-inf")], "none": [None],
    "anything": [1, "x"], "huge": [2**70, 1], "third": [0.1 + 0.2],
}  # fmt: skip


def rows(share: float) -> list[dict[str, Any]]:
    drawn = random.Random(0)
    return [
        {"id": str(k), **{name: drawn.choice(of) for name, of in VALUES.items() if drawn.random() < share}}
        for k in range(60)
    ]


def stored(store: ColumnStore) -> ColumnStore:
    return ColumnStore.from_plain(json.loads(json.dumps(store.to_plain())))


@pytest.mark.parametrize("share", [1.0, 0.7])
def test_the_table_is_that_of_pandas(share: float) -> None:
    expected = pandas.DataFrame(rows(share)).set_index("id")
    store = stored(ColumnStore(rows(share)))
    pandas.testing.assert_frame_equal(store.to_pandas(list(expected.columns), "id"), expected, check_exact=True)


def test_rows_are_added_and_taken() -> None:
    every = rows(0.7)
    store = stored(ColumnStore(every[:20]))
    store.extend(every[20:])
    assert len(store) == 60
    expected = pandas.DataFrame(every).set_index("id")
    pandas.testing.assert_frame_equal(store.to_pandas(list(expected.columns), "id"), expected, check_exact=True)
    some = store.select([50, 3])
    assert some.column("id") == ["50", "3"]
    assert some.column("text") == [every[50].get("text"), every[3].get("text")]
    assert some.column("absent") == [None, None]


def test_columns_of_another_machine_or_length_are_refused() -> None:
    content = ColumnStore([{"id": "a", "rate": 0.1}]).to_plain()
    for wrong in ({"byteorder": "none"}, {"length": 2}):
        with pytest.raises(ValueError, match="not as this machine writes them"):
            ColumnStore.from_plain(content | wrong)
