from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapscope.base.errors import InvalidInput
from gapscope.data.problem import split_indices


@given(n=st.integers(2, 300), test_fraction=st.floats(0.1, 0.9), seed=st.integers(0, 2**32 - 1))
def test_every_sample_is_in_exactly_one_part(n: int, test_fraction: float, seed: int) -> None:
    if not 0 < round(test_fraction * n) < n:
        return
    train, test = split_indices(n, test_fraction, seed)
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(n))
    assert len(test) == round(test_fraction * n)


def test_the_split_is_numpys_frozen_permutation() -> None:
    train, test = split_indices(10, 0.3, 0)
    assert (test.tolist(), train.tolist()) == ([2, 8, 4], [9, 1, 6, 7, 3, 0, 5])


@pytest.mark.parametrize(
    ("n", "fraction", "seed", "message"),
    [
        (10, 0.0, 0, r"test_fraction must lie in \(0, 1\); got 0.0"),
        (10, 0.5, -1, "split_seed must lie in"),
        (2, 0.1, 0, "must each keep at least one of the 2 samples; test_fraction 0.1 gives 2 and 0"),
    ],
)
def test_empty_parts_are_refused(n: int, fraction: float, seed: int, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        split_indices(n, fraction, seed)
