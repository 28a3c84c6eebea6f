"""Columns of pandas in types of Arrow are read as those of the usual types."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pandas
import pytest

from gapscope.base.arrow_types import without_arrow_types
from gapscope.base.errors import InvalidInput
from gapscope.base.samples import as_samples
from gapscope.data.frames import encode_inputs
from gapscope.data.named_columns import column_by_name

pyarrow = pytest.importorskip("pyarrow")

N = 60
RNG = np.random.default_rng(0)
NUMBERS = RNG.integers(0, 40, N)
TIMES = pandas.Series(pandas.Timestamp("2024-01-01") + pandas.to_timedelta(NUMBERS * 37, unit="h"))
WORDS = pandas.Series(RNG.choice(["c", "a", "b"], N)).astype(object)
FLAGS = pandas.Series(NUMBERS > 20)
KINDS: dict[str, tuple[Any, Any]] = {
    "time": (TIMES, pyarrow.timestamp("ns")),
    "time zone": (TIMES.dt.tz_localize("UTC"), pyarrow.timestamp("us", "UTC")),
    "date": (TIMES.dt.date, pyarrow.date32()),
    "date64": (TIMES.dt.date, pyarrow.date64()),
    "duration": (pandas.Series(pandas.to_timedelta(NUMBERS, unit="D")), pyarrow.duration("ns")),
    "boolean": (FLAGS, pyarrow.bool_()),
    "missing boolean": (FLAGS.astype("boolean").where(NUMBERS > 9), pyarrow.bool_()),
    "integer": (pandas.Series(NUMBERS), pyarrow.uint8()),
    "missing integer": (pandas.Series(NUMBERS).astype("Int64").where(NUMBERS > 9), pyarrow.int64()),
    "number": (pandas.Series(NUMBERS / 4), pyarrow.float64()),
    "decimal": (pandas.Series([Decimal(int(k)) / 4 for k in NUMBERS]), pyarrow.decimal128(9, 2)),
    "text": (WORDS, pyarrow.large_string()),
    "dictionary": (WORDS, pyarrow.dictionary(pyarrow.int32(), pyarrow.string())),
    "list": (pandas.Series(list(RNG.normal(size=(N, 2)))), pyarrow.list_(pyarrow.float64())),
}


def _both(kind: str) -> tuple[pandas.Series, pandas.Series]:
    plain, dtype = KINDS[kind]
    array = pyarrow.array(list(plain.astype(object).where(plain.notna(), None)), dtype)
    return plain, pandas.Series(array, dtype=pandas.ArrowDtype(dtype))


@pytest.mark.parametrize("kind", KINDS)
def test_columns_are_read_as_those_of_usual_types(kind: str) -> None:
    plain, arrow = _both(kind)
    x = RNG.normal(size=N)
    y = np.arange(N) % 2
    expected, _, notes = encode_inputs((pandas.DataFrame({"z": plain, "x": x}), y))
    other = pandas.DataFrame({"z": arrow, "x": x})
    found, second, others = encode_inputs((other, y), (other, y))
    pandas.testing.assert_frame_equal(found[0], expected[0])
    pandas.testing.assert_frame_equal(second[0], expected[0], check_like=True)
    assert notes == others[: len(notes)] and str(other["z"].dtype) == str(arrow.dtype)
    mixed = encode_inputs((pandas.DataFrame({"z": plain, "x": x}), y), (other, y))[1]
    pandas.testing.assert_frame_equal(mixed[0], expected[0], check_like=True)


@pytest.mark.parametrize("kind", ["boolean", "integer", "number", "text", "dictionary"])
def test_targets_are_read_as_those_of_usual_types(kind: str) -> None:
    plain, arrow = _both(kind)
    x = RNG.normal(size=(N, 2))
    for targets in (arrow, arrow.array):
        expected, found = as_samples((x, plain)), as_samples((x, targets))
        assert found.class_names == expected.class_names and found.kind == expected.kind
        assert found.y.tolist() == expected.y.tolist()
    frame = pandas.DataFrame({"x": x[:, 0], "z": arrow})
    assert without_arrow_types(column_by_name(frame, "z")[1]).tolist() == plain.tolist()


def test_rows_in_another_order_are_refused() -> None:
    y = _both("integer")[1]
    frame = pandas.DataFrame({"x": RNG.normal(size=N)}).sample(frac=1, random_state=0)
    with pytest.raises(InvalidInput, match="matched by position"):
        as_samples((frame, y))
    assert without_arrow_types(frame) is frame
