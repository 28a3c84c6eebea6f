"""The one checker of options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from gapscope.base.errors import InvalidInput
from gapscope.base.options import check_known, coerce, from_mapping


@dataclass(frozen=True)
class Size:
    width: int = 1


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        (1, float, 1.0),
        (2, int, 2),
        (True, bool, True),
        ("a", str, "a"),
        (None, int | None, None),
        (3, int | None, 3),
        ([1, 2], tuple[int, ...], (1, 2)),
        ({"a": 1}, dict[str, Any], {"a": 1}),
        ({"width": 4}, Size, Size(4)),
        (Size(5), Size, Size(5)),
        ([{"width": 4}], tuple[Size, ...], (Size(4),)),
        (np.int64(3), int, 3),
        (np.float32(0.5), float, 0.5),
        (np.bool_(True), bool, True),
        (torch.tensor(3), int | None, 3),
        (np.arange(2), tuple[int, ...], (0, 1)),
        ({"a": np.float32(0.5), "b": (np.int64(1),)}, dict[str, Any], {"a": 0.5, "b": (1,)}),
    ],
)
def test_values_take_their_declared_type(value: Any, annotation: Any, expected: Any) -> None:
    result = coerce("x", value, annotation)
    assert result == expected and type(result) is type(expected)


@pytest.mark.parametrize(
    ("value", "annotation", "message"),
    [
        (np.float32(1.5), int, r"^x must be of type int; got 1\.5"),
        ({"a": object}, dict[str, Any], r"^x\.a must be a number"),
        (1.5, int, r"^x must be of type int; got 1\.5 \(float\)\.$"),
        (True, int, r"^x must be of type int; got True \(bool\)\.$"),
        (True, float, r"must be of type float; got True"),
        (1, bool, r"must be of type bool; got 1 \(int\)"),
        (None, str, r"must be of type str; got None"),
        ("ab", tuple[str, ...], r"^x must be a list; got 'ab'\. Write it in square brackets\.$"),
        ([1, "b"], tuple[int, ...], r"^x\[1\] must be of type int; got 'b'"),
        (3, Size, r"^x must be a table of settings; got 3\.$"),
        (
            {"widht": 3},
            Size,
            r"^x has no setting 'widht'; settings: width\. Did you mean 'width'\?$",
        ),
        ([], dict[str, Any], "x must be of type dict"),
    ],
)
def test_a_wrong_type_raises_by_name(value: Any, annotation: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        coerce("x", value, annotation)


def test_names_that_are_not_known() -> None:
    check_known("It", [], [])
    check_known("It", ["b"], ["a", "b"])
    with pytest.raises(InvalidInput, match=r"^It has no table 'c'; tables: none\.$"):
        check_known("It", ["c"], [], noun="table")


def test_a_table_makes_the_class() -> None:
    assert from_mapping(Size, {"width": 2}, "size") == Size(2)
