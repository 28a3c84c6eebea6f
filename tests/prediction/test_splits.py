"""Parts of the samples: sizes, nothing on both sides, groups whole."""

from __future__ import annotations

import numpy as np
import pytest

from gapscope.base.errors import InvalidInput
from gapscope.prediction.subset_designs import folds, group_numbers, hold_out, quarter_and_halves, random_partition


def random() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize("samples", [40, 41, 97])
def test_quarter_and_halves_have_their_sizes_and_share_nothing(samples: int) -> None:
    quarter, half, other = quarter_and_halves(np.arange(samples), random())
    assert abs(len(quarter.trained) - samples / 4) <= 1 and abs(len(half.trained) - samples / 2) <= 1
    assert set(quarter.trained) < set(half.trained)
    assert set(half.trained) == set(other.scored) and set(half.scored) == set(other.trained)
    for split in (quarter, half, other):
        assert sorted([*split.trained, *split.scored]) == list(range(samples))


def test_every_sample_is_scored_by_one_fold() -> None:
    splits = folds(np.arange(53), 5, random())
    assert sorted(np.concatenate([split.scored for split in splits])) == list(range(53))
    assert all(not set(split.trained) & set(split.scored) for split in splits)
    assert {len(split.scored) for split in splits} == {10, 11}


def test_a_hold_out_keeps_its_share() -> None:
    split = hold_out(np.arange(200), 0.1, random())
    assert len(split.scored) == 20 and not set(split.trained) & set(split.scored)


def test_groups_stay_whole() -> None:
    groups = group_numbers([f"patient {number % 17}" for number in range(200)], 200)
    for split in (*quarter_and_halves(groups, random()), *folds(groups, 5, random())):
        assert not set(groups[split.trained]) & set(groups[split.scored])
        assert len(split.trained) and len(split.scored)


def test_parts_are_random_and_repeatable() -> None:
    first, again = (random_partition(np.arange(30), (0.5, 0.5), random())[0] for _ in range(2))
    other = random_partition(np.arange(30), (0.5, 0.5), np.random.default_rng(1))[0]
    assert (first == again).all() and set(first) != set(other)


def test_a_label_a_sample_is_asked_for() -> None:
    with pytest.raises(InvalidInput, match="groups"):
        group_numbers([1, 2, 3], 4)
    with pytest.raises(InvalidInput, match=r"one label per sample, shape \[n\]; got shape \[2, 2\]"):
        group_numbers([[1, 2], [3, 4]], 4)
