"""The registry of penalties: made by name."""

from __future__ import annotations

import pytest

from gapscope.base.errors import InvalidInput
from gapscope.penalties.registry import make_penalty
from gapscope.penalties.weight import WeightPenalty


def test_penalties_are_made_by_name() -> None:
    made = make_penalty("weight", {"strength": 0.5})
    assert isinstance(made, WeightPenalty) and made.strength == 0.5
    with pytest.raises(InvalidInput, match=r"no penalty 'wieght'.*Did you mean 'weight'"):
        make_penalty("wieght", {})
    with pytest.raises(InvalidInput, match=r"has no setting 'strenth'.*Did you mean 'strength'"):
        make_penalty("weight", {"strenth": 1})
