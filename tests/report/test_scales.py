"""Scales: every value inside, ticks round, rising and inside."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapscope.report.svg import Scale

VALUES = st.lists(st.floats(min_value=-1e6, max_value=1e6).filter(lambda v: abs(v) > 1e-6), min_size=1, max_size=20)


@given(values=VALUES, about=st.integers(2, 8))
def test_linear(values: list[float], about: int) -> None:
    scale = Scale.around(values)
    assert all(-1e-9 <= scale.percent(value) <= 100 + 1e-9 for value in values)
    ticks = scale.ticks(about)
    assert ticks == sorted(set(ticks)) and len(ticks) <= about + 1
    assert all(-1e-6 <= scale.percent(tick) <= 100 + 1e-6 for tick in ticks)


@given(values=st.lists(st.floats(min_value=1e-12, max_value=1e12), min_size=1, max_size=20))
def test_logarithmic(values: list[float]) -> None:
    scale = Scale.around(values, logarithmic=True)
    assert all(-1e-9 <= scale.percent(value) <= 100 + 1e-9 for value in values)
    ticks = scale.ticks(4)
    assert 1 <= len(ticks) <= 8
    assert all(-1e-6 <= scale.percent(tick) <= 100 + 1e-6 for tick in ticks)


def test_equal_values_and_nothing_at_all_still_make_an_axis() -> None:
    assert Scale.around([5.0, 5.0]).percent(5.0) == pytest.approx(50)
    assert Scale.around([0.0]).percent(0.0) == pytest.approx(50)
    assert Scale.around([3.0], logarithmic=True).percent(3.0) == pytest.approx(50)
    assert Scale.around([math.nan, math.inf]).high > 1
    assert Scale.around([-1.0, 0.0], logarithmic=True).low > 0


def test_many_decades_are_thinned_and_few_are_filled() -> None:
    assert Scale(1e-9, 1e9, logarithmic=True).ticks(4) == [1e-9, 1e-4, 1e1, 1e6]
    assert Scale(1.0, 30.0, logarithmic=True).ticks() == [1, 2, 5, 10, 20]
    assert Scale(2.1, 4.9, logarithmic=True).ticks(4) == [3.0, 4.0]
