"""The shapes of calls are checked while tests run: a guard that is never seen to fail guards nothing."""

from __future__ import annotations

import jaxtyping
import pytest
import torch

from gapscope.measures._forward import margins_of
from support.shape_checks import CALLS, check_anew

pytest.importorskip("beartype")


def refused() -> bool:
    """Whether a call with two lengths for one name is refused; `pytest.raises` would switch the checks off."""
    try:
        margins_of(torch.eye(2), torch.zeros(1, 2).long())
    except jaxtyping.TypeCheckError:
        return True
    except Exception:
        return False
    return False


def test_a_wrong_shape_is_seen_in_the_first_calls_of_a_test() -> None:
    assert refused()
    for _ in range(CALLS):
        margins_of(torch.eye(2), torch.zeros(2).long())
    assert not refused()
    check_anew()
    assert refused()
