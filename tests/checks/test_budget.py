"""The time budget of `check`: what would exceed it is not begun. Times are in benchmarks/time_budgets."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

import gapscope as gs
from gapscope.base.budget import BudgetSpent, CpuBudget
from gapscope.base.samples import Samples
from gapscope.base.specs import TrainingSpec
from gapscope.checks import context as context_module
from gapscope.checks import fixes, ranked_labels
from gapscope.labels import boosted_trees
from gapscope.labels.duplicates import compares_all_pairs, duplicate_pairs, duplicates_in_test


def moons(n: int = 120) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 5, generator=generator)
    return x, (x[:, 0] > 0).long()


def refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("this was not to be computed")


def test_a_check_of_the_run_without_a_monitor_computes_no_forecast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(context_module, "make_forecast", refuse)
    result = gs.check(nn.Linear(5, 2), moons(), only=["GS301"])
    assert [outcome.code for outcome in result.not_checked] == ["GS301"]


def test_a_budget_of_nothing_trains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gapscope.checks.trainers.train", refuse)
    result = gs.check(nn.Linear(5, 2), moons(), train_fn=TrainingSpec(epochs=1), time_budget=0.0)
    assert result.tried == "the checks used the time budget"


def test_a_training_is_ended_with_the_budget() -> None:
    x, y = moons()
    network = nn.Linear(5, 2)
    spec = TrainingSpec(epochs=10**6)
    result = gs.check(network, (x, y), train_fn=spec, only=["GS104"], time_budget=0.5)
    assert "time_budget=0.5 was spent" in str(result.tried)


@pytest.mark.thorough
def test_labels_and_fixes_have_the_budget_of_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    budgets: list[CpuBudget] = []

    def watch(*args: Any, budget: CpuBudget, **options: Any) -> Any:
        budgets.append(budget)
        return issues(*args, budget=budget, **options)

    issues = ranked_labels.find_issues_of_samples
    monkeypatch.setattr(ranked_labels, "find_issues_of_samples", watch)
    monkeypatch.setattr(fixes, "find_issues_of_samples", watch)
    x, y = moons()
    gs.check(
        nn.Linear(5, 2), (x, y), train_fn=TrainingSpec(epochs=1), only=["GS102"], time_budget=50.0
    )
    assert len(budgets) > 2 and {budget.passed for budget in budgets} == {50.0}


def test_near_duplicates_are_searched_if_there_is_time() -> None:
    x, y = moons()
    copied = x.clone()
    copied[1] = x[0]
    copied[3] = x[2] + 1e-4
    samples = Samples(copied, y)
    assert duplicate_pairs(samples) == [(0, 1), (2, 3)]
    assert duplicate_pairs(samples, seconds=0.0) == [(0, 1)]
    test = Samples(torch.stack([x[2] - 1e-4, x[4]]), y[:2])
    assert duplicates_in_test(samples, test, seconds=0.0) == ((4, 1),)
    assert not compares_all_pairs(samples, 0.0) and compares_all_pairs(samples, math.inf)
    result = gs.check(None, (copied, y), only=["GS101"], time_budget=1e-4)
    assert result.not_checked or "exactly (near-duplicates were not searched)" in repr(result)
    labels = y.clone()
    labels[:4] = torch.tensor([0, 1, 0, 1])
    found = gs.find_label_issues(None, (copied, labels), time_budget=1e-4)
    assert found.conflicts == ((0, 1),)
    assert any("Near-duplicates were not searched" in note for note in found.notes)


def test_trees_that_take_too_long_are_not_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = moons()
    samples = Samples(x, y)
    options: dict[str, Any] = {"seed": 0}
    with pytest.raises(BudgetSpent, match="least 1 CPU s"):
        boosted_trees.out_of_fold_log_probabilities(samples, y, 2, budget=CpuBudget(0.5), **options)
    monkeypatch.setattr(boosted_trees, "_expected_seconds", lambda *_: 50.0)
    with pytest.raises(BudgetSpent, match=r"about 50 CPU s, and .* Pass time_budget=\d+"):
        boosted_trees.out_of_fold_log_probabilities(samples, y, 2, budget=CpuBudget(40), **options)
    budget = CpuBudget(60)
    fitted = boosted_trees.out_of_fold_log_probabilities(samples, y, 2, budget=budget, **options)
    assert fitted is not None and fitted.shape == (120, 2)
