"""Checks of values: what their messages say."""

from __future__ import annotations

import pytest

from gapscope.base.errors import InvalidInput, check_range, did_you_mean


@pytest.mark.parametrize(
    ("high", "shown"),
    [(2 / 3, "0.6667"), (0.25, "0.25"), (1e-9, "1e-09"), (10, "10"), (1 / 3e6, "3.333")],
)
def test_limits_have_four_decimals(high: float, shown: str) -> None:
    with pytest.raises(InvalidInput, match=rf"must lie in \[0, {shown}.*\); got 20"):
        check_range("share", 20, 0, high, high_open=True)
    with pytest.raises(InvalidInput) as error:
        check_range("share", 20, 0, 2 / 3, high_open=True)
    assert str(error.value) == "share must lie in [0, 0.6667); got 20."


def test_names_that_differ_in_case_are_suggested() -> None:
    assert did_you_mean("LABEL", ["size", "label"]) == " Did you mean 'label'?"
    assert did_you_mean("label", ["Label"]) == " Did you mean 'Label'?"
