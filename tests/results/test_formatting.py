"""Numbers as people read them; the examples are in the docstrings, here the corners."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapscope.results.formatting import format_fixed, format_number, setting_value

BACK = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹−", "-0123456789-")


@given(st.floats(min_value=-1e300, max_value=1e300))
def test_a_written_number_is_within_half_a_unit_of_its_last_digit(value: float) -> None:
    text = format_number(value).replace(",", "")
    mantissa, _, exponent = text.partition("×10")
    back = float(mantissa.translate(BACK)) * 10.0 ** float(exponent.translate(BACK) or 0)
    assert back == pytest.approx(value, rel=0.00501, abs=1e-320)
    assert "e" not in text


def test_nothing_is_an_en_dash() -> None:
    for write in (format_number, format_fixed, setting_value):
        assert write(None) == write(math.nan) == "–"
    assert format_fixed(math.inf) == "∞"
    assert format_number(-0.0) == "0"


def test_text_that_only_looks_like_a_list_stays() -> None:
    assert setting_value("[broken") == "[broken"
    assert setting_value("[1, 2.5]") == "1, 2.5"
    assert setting_value('[{"name": "trace", "options": {}}, {"name": "b"}]') == "trace, b"
