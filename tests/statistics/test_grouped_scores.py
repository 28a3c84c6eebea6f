"""Sampling error of scores in groups: closed forms, and coverage of the intervals in simulations."""

from __future__ import annotations

import numpy as np
import pytest

from gapscope.statistics.grouped_scores import independent_samples, variance_of_mean
from gapscope.statistics.intervals import wilson_interval


def test_single_samples_are_all_independent() -> None:
    correct = np.array([1.0, 0.0, 1.0, 1.0] * 10)
    assert independent_samples(correct, np.arange(40)) == pytest.approx(40, rel=0.05)


def test_copies_of_one_sample_count_once() -> None:
    correct = (np.arange(200) % 10 > 1).astype(float)
    copies, groups = np.repeat(correct, 5), np.repeat(np.arange(200), 5)
    assert independent_samples(copies, groups) == pytest.approx(200, rel=0.05)


def test_groups_that_do_not_differ_are_counted_not_their_samples() -> None:
    groups = np.repeat(np.arange(4), 25)
    assert independent_samples(np.ones(100), groups) < 4
    assert wilson_interval(1.0, independent_samples(np.ones(100), groups))[0] < 0.7


def test_one_group_tells_nothing() -> None:
    assert variance_of_mean(np.ones(10), np.zeros(10, dtype=int)) == np.inf
    assert independent_samples(np.ones(10), np.zeros(10, dtype=int)) == 1


@pytest.mark.parametrize("n_groups", [4, 12])
@pytest.mark.parametrize("correlation", [0.02, 0.5])
def test_intervals_of_few_groups_hold_what_they_promise(n_groups: int, correlation: float) -> None:
    rng = np.random.default_rng(0)
    truth, size = 0.8, 15
    concentration = (1 - correlation) / correlation
    hits = 0
    for _ in range(200):
        rates = rng.beta(truth * concentration, (1 - truth) * concentration, n_groups)
        groups = np.repeat(np.arange(n_groups), size)
        correct = (rng.random(len(groups)) < rates[groups]).astype(float)
        low, high = wilson_interval(correct.mean(), independent_samples(correct, groups))
        hits += low <= truth <= high
    # by normal quantiles 0.59 of four groups that differ much
    assert hits >= 0.8 * 200
