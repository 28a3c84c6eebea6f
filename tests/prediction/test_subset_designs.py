"""Designs of a learning curve: closed forms, coverage where the truth is known, and splits with whole groups."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gapscope.base.errors import InvalidInput
from gapscope.prediction.subset_designs import (
    LADDER,
    NORMAL_QUANTILE,
    SizedScore,
    extrapolate,
    folds,
    group_numbers,
    predicted_width,
    quarter_and_halves,
    variance_of_mean,
)


def test_half_and_quarter_is_the_formula_written_out() -> None:
    p, q, n = 0.7, 0.62, 600
    found = extrapolate(
        SizedScore(n // 2, p, p * (1 - p) / (n / 2)), SizedScore(n // 4, q, q * (1 - q) / (3 * n / 4)), n
    )
    variance = 1.5**2 * p * (1 - p) / (n / 2) + 0.5**2 * q * (1 - q) / (3 * n / 4) + (0.25 * (p - q)) ** 2 + 0.01**2
    assert found.value == pytest.approx(p + 0.5 * (p - q), abs=1e-15)
    assert found.standard_error == pytest.approx(math.sqrt(variance), rel=1e-14)


def test_a_score_that_falls_with_more_samples_is_not_uncertain_growth() -> None:
    falling, flat = (extrapolate(SizedScore(300, 0.7, 0.0), SizedScore(150, mean, 0.0), 600) for mean in (0.8, 0.7))
    assert falling.standard_error == flat.standard_error == pytest.approx(0.01)


def test_variance_of_a_mean_is_that_of_the_textbook() -> None:
    scores = np.random.default_rng(0).normal(size=50)
    assert variance_of_mean(scores, np.arange(50)) == pytest.approx(scores.var(ddof=1) / 50, rel=1e-12)
    assert math.isinf(variance_of_mean(scores, np.zeros(50, dtype=int)))


def test_no_wrong_one_among_a_few_is_not_certainty() -> None:
    assert variance_of_mean(np.ones(10), np.arange(10)) == pytest.approx((12 / 14) * (2 / 14) / 10)


def test_the_interval_covers_where_the_score_is_the_same_at_all_sizes() -> None:
    random, covered, rounds, n, truth = np.random.default_rng(2), 0, 400, 400, 0.7
    for _ in range(rounds):
        right = (random.random(n) < truth).astype(float)
        half = SizedScore(n // 2, right[n // 2 :].mean(), variance_of_mean(right[n // 2 :], np.arange(n // 2)))
        quarter = SizedScore(n // 4, right[n // 4 :].mean(), variance_of_mean(right[n // 4 :], np.arange(3 * n // 4)))
        found = extrapolate(half, quarter, n)
        covered += abs(found.value - truth) <= NORMAL_QUANTILE * found.standard_error
    # the covariance that the formula leaves out makes it a little wide
    assert 0.90 <= covered / rounds <= 0.98


def test_designs_that_cost_more_are_expected_to_be_narrower() -> None:
    quarter = SizedScore(150, 0.7, 0.21 / 450)
    widths = [predicted_width(design, quarter, 0.0, 600) for design in LADDER]
    assert widths == sorted(widths, reverse=True)


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


def test_groups_stay_whole() -> None:
    groups = group_numbers([f"patient {number % 17}" for number in range(200)], 200)
    for split in (*quarter_and_halves(groups, random()), *folds(groups, 5, random())):
        assert not set(groups[split.trained]) & set(groups[split.scored])
        assert len(split.trained) and len(split.scored)


def test_a_label_a_sample_is_asked_for() -> None:
    with pytest.raises(InvalidInput, match="groups"):
        group_numbers([1, 2, 3], 4)
    with pytest.raises(InvalidInput, match=r"one label per sample, shape \[n\]; got shape \[2, 2\]"):
        group_numbers([[1, 2], [3, 4]], 4)
