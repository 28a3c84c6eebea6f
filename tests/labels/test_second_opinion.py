"""Errors that one method finds are promised only if a forest finds them too, or if they gain enough likelihood."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

import gapscope as gs
from gapscope.labels import boosted_trees
from gapscope.labels.class_labels import _least_probability
from gapscope.labels.results import LabelIssues, LabelNoiseEstimate
from gapscope.labels.second_opinion import forest_opinion


def hidden_cause(n: int, seed: int, n_classes: int = 4) -> tuple[Tensor, Tensor]:
    """Correct labels that depend on one input that is not there."""
    z = torch.randn(n, 10, generator=torch.Generator().manual_seed(seed))
    y = (z[:, 0] + z[:, 1] * z[:, 2] > 0).long() + 2 * (z[:, 3] > 0).long()
    if n_classes == 8:
        y = y + 4 * (z[:, 4] > 0).long()
    return z[:, [0, 1, 3, 4, 5, 6, 7, 8, 9]], y


def plant(y: Tensor, rate: float, n_classes: int, seed: int = 0) -> Tensor:
    return gs.data.inject_label_noise(y, rate, n_classes, torch.Generator().manual_seed(seed))


def few_each(n_classes: int, n_each: int, spread: float, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    centres = spread * torch.randn(n_classes, 20, generator=generator)
    y = torch.arange(n_classes).repeat_interleave(n_each)
    return centres[y] + torch.randn(len(y), 20, generator=generator), y


def is_unpromised(issues: LabelIssues) -> bool:
    no_rate = issues.noise is None or issues.noise.low == 0
    return no_rate and math.isnan(issues.expected_precision) and not len(issues.precision_curve)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [0, 1])
def test_hard_clean_tables_without_trees_promise_nothing(seed: int) -> None:
    issues = gs.find_label_issues(None, hidden_cause(2500, seed), time_budget=0.1)
    assert is_unpromised(issues) and issues.method != "boosted trees"


@pytest.mark.thorough
def test_eight_classes_promise_nothing() -> None:
    assert is_unpromised(gs.find_label_issues(None, hidden_cause(2500, 0, 8)))


@pytest.mark.thorough
@pytest.mark.parametrize("n_samples", [20_000, 210_000])
def test_large_hard_clean_tables_promise_nothing(n_samples: int) -> None:
    issues = gs.find_label_issues(None, hidden_cause(n_samples, 0))
    assert is_unpromised(issues) and issues.n_flagged < 0.001 * n_samples
    assert is_unpromised(gs.find_label_issues(None, hidden_cause(n_samples, 1), time_budget=1))


@pytest.mark.parametrize("rate", [0.1, 0.2])
def test_a_precision_is_still_promised_where_the_forest_finds_the_errors(rate: float) -> None:
    train = gs.load_dataset("digits").train.first(500)
    noisy = plant(train.y, rate, 10)
    issues = gs.find_label_issues(None, (train.inputs.flatten(1), noisy))
    assert issues.noise is not None
    wrong = (noisy != train.y)[issues.flagged].double().mean()
    assert 0 < issues.noise.low <= rate <= issues.noise.high
    assert 0.7 < issues.expected_precision <= float(wrong) + 0.1


@pytest.mark.thorough
def test_probabilities_of_one_kernel_do_not_confirm_themselves() -> None:
    x, y = hidden_cause(3000, 0)
    scores = torch.stack(
        [-(2 * x[:, 0]).abs() * ((x[:, 0] > 0) != bool(k % 2)) for k in range(4)], 1
    )
    scores = scores - 9.0 * ((x[:, 2:3] > 0) != torch.tensor([0, 0, 1, 1]).bool())
    probabilities = (2 * scores).softmax(1)
    assert is_unpromised(gs.find_label_issues(None, (x, y), pred_probs=probabilities))


def test_the_forest_sees_no_more_than_it_has_time_for() -> None:
    x, y = hidden_cause(6000, 0)
    opinion = forest_opinion(x, y, seed=0, seconds=0.0)
    assert len(opinion.rows) == len(opinion.error) == 2000
    assert 0.6 < opinion.accuracy < 0.9 and opinion.confident < 0.1


@pytest.mark.thorough
def test_omitted_trees_and_an_exceeded_budget_are_named() -> None:
    x, y = hidden_cause(1500, 0)
    issues = gs.find_label_issues(None, (x, y), time_budget=0.05)
    notes = " ".join(issues.notes)
    assert "Boosted trees were omitted: they take at least" in notes
    assert "time_budget=0.05 was exceeded" in notes
    estimate = gs.estimate_label_noise(None, (x, y), time_budget=0.05)
    assert "Boosted trees were omitted" in str(estimate)
    assert "Boosted trees" not in " ".join(gs.find_label_issues(None, (x[:300], y[:300])).notes)


def test_trees_see_a_part_of_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boosted_trees, "FITTED_ROWS", 60)
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(400, 3, generator=generator)
    y = (x[:, 0] > 0.5).long()
    y[:6] = 2  # too rare for every part
    scores = boosted_trees.out_of_fold_log_probabilities(gs.Samples(x, y), y, 3, seed=0)
    assert scores is not None and scores.shape == (400, 3)
    assert float((scores.argmax(1) == y)[6:].double().mean()) > 0.8


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("n_classes", "n_each", "spread"), [(50, 4, 1.0), (30, 5, 1.0), (20, 6, 0.8)]
)
def test_clean_classes_of_few_samples_promise_nothing(
    n_classes: int, n_each: int, spread: float
) -> None:
    found = [
        gs.find_label_issues(None, few_each(n_classes, n_each, spread, 60 + seed))
        for seed in range(8)
    ]
    assert all(issues.noise is None or issues.noise.low == 0 for issues in found)
    assert sum(not math.isnan(issues.expected_precision) for issues in found) <= 1


@pytest.mark.parametrize("n_each", [4, 5, 8])
def test_errors_in_distinct_classes_of_few_samples_are_promised(n_each: int) -> None:
    x, y = few_each(30, n_each, 2.0, 3)
    noisy = plant(y, 0.1, 30)
    issues = gs.find_label_issues(None, (x, noisy))
    wrong = (noisy != y)[issues.flagged].double().mean()
    assert issues.noise is not None and issues.noise.low > 0
    assert 0.8 < issues.expected_precision <= float(wrong) + 0.05


def test_caution_grows_as_classes_get_smaller() -> None:
    counts = [2, 3, 4, 5, 6, 8, 10, 20]
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    least = _least_probability(labels)[torch.tensor(counts).cumsum(0) - 1].tolist()
    assert least == sorted(least, reverse=True)
    assert least[:2] == [0.9, 0.9] and least[-2:] == [0.5, 0.5]
    assert all(a - b < 0.12 for a, b in pairwise(least[:-1]))


def test_canaries_are_named_only_where_there_are_some() -> None:
    wide = LabelNoiseEstimate(0.2, 0.0, 0.5, 0.9, 100, accuracy=0.8, most_frequent=0.2)
    assert "canaries" not in wide.abstained_because
    run = LabelNoiseEstimate(0.2, 0.0, 0.5, 0.9, 100, accuracy=0.8, has_canaries=True)
    assert "more canaries" in run.abstained_because


def test_the_order_of_rows_and_columns_does_not_decide_what_the_forest_holds() -> None:
    generator = torch.Generator().manual_seed(3)
    x, y = hidden_cause(120, 0)
    # a column of few values, and one of zeros of both signs
    x = torch.cat([x, (x[:, :1] > 0.3).float(), -0.0 * x[:, 1:2]], 1)
    first = forest_opinion(x, y, seed=0, seconds=10.0)
    by_row = torch.empty_like(first.error)
    by_row[first.rows] = first.error
    rows = torch.randperm(120, generator=generator)
    columns = torch.randperm(x.shape[1], generator=generator)
    other = forest_opinion(x[rows][:, columns], y[rows], seed=0, seconds=10.0)
    moved = torch.empty_like(other.error)
    moved[rows[other.rows]] = other.error
    assert torch.allclose(moved, by_row, atol=1e-6)
    assert (other.accuracy, other.confident) == (first.accuracy, first.confident)
    # rows in another part than their labels are other data
    assert forest_opinion(x, y.flip(0), seed=0, seconds=10.0).accuracy != first.accuracy
