"""The budget of CPU seconds, and what of the NTK fits into it."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import nn

from gapscope.base.budget import BudgetSpent, CpuBudget
from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.inspection.timing import smallest_timing
from gapscope.measures import cpu_budget
from gapscope.measures.cpu_budget import affordable_kernel
from gapscope.measures.kernel_leave_one_out import kernel_leave_one_out

N = 3000
SAMPLES = Samples(
    torch.randn(N, 4, generator=torch.Generator().manual_seed(0)), torch.arange(N) % 10
)
NETWORK = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 10))
OPTIONS: dict[str, Any] = {"max_exact": 2000, "landmarks": 1000, "combinations": None}


class Clock:
    """A processor time that advances only when told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        monkeypatch.setattr(time, "process_time", lambda: self.seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def kernel_takes(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, per_sample: float, per_pair: float
) -> list[int]:
    """Let the kernel take so many seconds, and return the sizes of the trials."""
    sizes: list[int] = []

    def take(network: nn.Module, x: torch.Tensor, y: torch.Tensor, **_: Any) -> None:
        network(x)
        sizes.append(len(x))
        clock.seconds += len(x) * per_sample + len(x) ** 2 * per_pair

    monkeypatch.setattr(cpu_budget, "kernel_leave_one_out", take)
    return sizes


def test_spent_and_remaining(clock: Clock) -> None:
    budget = CpuBudget(10.0)
    clock.seconds = 4.0
    assert (budget.spent, budget.remaining) == (4.0, 6.0)
    assert budget.part(0.5).seconds == 3.0
    clock.seconds = 14.0
    assert budget.remaining == 0.0 and not budget.affords(0.1)


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
def test_a_budget_is_positive(seconds: float) -> None:
    with pytest.raises(InvalidInput, match="time_budget"):
        CpuBudget(seconds)


def test_work_beyond_the_budget_ends_at_a_forward_pass(clock: Clock) -> None:
    budget = CpuBudget(10.0)
    with budget.enforced(NETWORK):
        NETWORK(SAMPLES.inputs[:2])
        clock.seconds = 11.5
        with pytest.raises(BudgetSpent):
            NETWORK(SAMPLES.inputs[:2])
    NETWORK(SAMPLES.inputs[:2])


def test_the_smallest_of_three_timings_counts(clock: Clock) -> None:
    seconds = iter([3.0, 1.0, 2.0])

    def work() -> None:
        clock.seconds += next(seconds)

    assert smallest_timing(work) == 1.0


def test_without_a_limit_nothing_is_tried(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    sizes = kernel_takes(monkeypatch, clock, 1.0, 1.0)
    assert affordable_kernel(NETWORK, SAMPLES, OPTIONS, CpuBudget(None), n_outputs=10) == (
        OPTIONS,
        "",
    )
    assert not sizes


def test_a_kernel_that_surely_fits_is_not_tried(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    sizes = kernel_takes(monkeypatch, clock, 1.0, 1.0)
    options, note = affordable_kernel(
        NETWORK, SAMPLES, OPTIONS, CpuBudget(60.0), n_outputs=10, forward=1e-3
    )
    assert options is OPTIONS and not note and not sizes


def test_a_kernel_that_surely_does_not_fit_is_not_tried(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    sizes = kernel_takes(monkeypatch, clock, 1.0, 1.0)
    options, note = affordable_kernel(
        NETWORK, SAMPLES, OPTIONS, CpuBudget(60.0), n_outputs=10, forward=30.0
    )
    assert options is None and "at least 120" in note and not sizes


def test_all_outputs_that_surely_do_not_fit_are_not_tried(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """Ten outputs take 100 s or more, four combinations 40 s or more."""
    tried: list[int | None] = []

    def take(network: nn.Module, x: torch.Tensor, y: torch.Tensor, **options: Any) -> None:
        tried.append(options["combinations"])

    monkeypatch.setattr(cpu_budget, "kernel_leave_one_out", take)
    options, note = affordable_kernel(
        NETWORK, SAMPLES, OPTIONS, CpuBudget(60.0), n_outputs=10, forward=10.0
    )
    assert options is not None and options["combinations"] == 4 and "at least 100 CPU s" in note
    assert set(tried) == {4}


@pytest.mark.parametrize(
    ("budget", "combinations", "landmarks"),
    [(4000.0, None, 1000), (2000.0, 4, 1000), (1000.0, 4, 500), (300.0, 4, 125)],
)
def test_cheaper_kernels_in_steps(
    monkeypatch: pytest.MonkeyPatch,
    clock: Clock,
    budget: float,
    combinations: int | None,
    landmarks: int,
) -> None:
    """One second per landmark and 3,000 samples; four of ten outputs take (1 + 4) / (1 + 10) of it."""
    sizes = kernel_takes(monkeypatch, clock, 0.0, 1 / 1000)
    options, note = affordable_kernel(NETWORK, SAMPLES, OPTIONS, CpuBudget(budget), n_outputs=10)
    assert options is not None
    assert (options["combinations"], options["landmarks"]) == (combinations, landmarks)
    assert bool(note) == (budget < 4000)
    assert sizes[:7] == [8, 8, 8, 8, 16, 16, 16]


def test_a_small_kernel_that_fits_is_tried_once(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    sizes = kernel_takes(monkeypatch, clock, 0.1, 0.0)
    few = SAMPLES.subset(torch.arange(100))
    options, note = affordable_kernel(NETWORK, few, OPTIONS, CpuBudget(60.0), n_outputs=10)
    assert options is OPTIONS and not note and sizes == [8]
    sizes.clear()
    affordable_kernel(NETWORK, few, OPTIONS, CpuBudget(12.0), n_outputs=10)
    assert sizes[:3] == [8, 8, 8]


def test_gradients_of_further_kernels_count(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    kernel_takes(monkeypatch, clock, 0.1, 0.0)
    few = SAMPLES.subset(torch.arange(100))
    for budget, passes, fits in ((20.0, 1.0, True), (20.0, 2.0, False), (60.0, 2.0, True)):
        options, note = affordable_kernel(
            NETWORK, few, OPTIONS, CpuBudget(budget), n_outputs=10, passes=passes
        )
        assert (options is OPTIONS and not note) == fits


def test_the_first_trial_ends_what_cannot_fit(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    sizes = kernel_takes(monkeypatch, clock, 1.0, 0.0)
    options, note = affordable_kernel(NETWORK, SAMPLES, OPTIONS, CpuBudget(60.0), n_outputs=10)
    assert options is None and sizes == [8]
    assert "3000 CPU s" in note


def test_a_trial_changes_no_result() -> None:
    samples = SAMPLES.subset(torch.arange(40))
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    options = {**OPTIONS, "generator": generator}
    affordable, _ = affordable_kernel(NETWORK, samples, options, CpuBudget(60.0), n_outputs=10)
    assert affordable is options and torch.equal(generator.get_state(), before)
    kernel_leave_one_out(NETWORK, samples.inputs, samples.y, **options)


LARGE: dict[str, Any] = {"max_exact": 2000, "landmarks": 1000, "chunk_size": None, "seed": 0}


@pytest.mark.parametrize(
    ("seconds", "combinations"), [(None, 10), (500.0, 10), (200.0, 4), (60.0, 1), (40.0, None)]
)
def test_combinations_of_a_projected_kernel_follow_the_budget(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, seconds: float | None, combinations: int | None
) -> None:
    """A forward pass of all samples takes 3 s, a combination 30 s more, in 3,000 samples and 1,000 landmarks."""

    def take(network: nn.Module, x: torch.Tensor, y: torch.Tensor, **options: Any) -> None:
        assert options["combinations"] == 1
        clock.seconds += len(x) * (0.001 + 0.01)

    monkeypatch.setattr(cpu_budget, "projected_leave_one_out", take)
    k, note = cpu_budget.affordable_projection(
        NETWORK, SAMPLES, LARGE, CpuBudget(seconds), n_outputs=10, forward=3.0
    )
    assert k == combinations
    # 4,000 samples of 0.011 s, and the trials
    assert bool(note) == (combinations is None) and (not note or "about 44 CPU s" in note)


def test_memory_limits_the_combinations_of_a_projected_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers = sum(min(p.numel(), 256) for p in NETWORK.parameters())
    monkeypatch.setattr(cpu_budget, "MAX_PROJECTED", 3 * 1000 * numbers + 1)
    k, _ = cpu_budget.affordable_projection(
        NETWORK, SAMPLES, LARGE, CpuBudget(None), n_outputs=10, forward=3.0
    )
    assert k == 3


def test_a_part_of_a_budget_advises_the_whole() -> None:
    whole = CpuBudget(8.0)
    part = whole.part(0.25)
    assert part.seconds == pytest.approx(2.0, abs=0.1) and part.passed == 8.0
    # 4 s of work need a budget of 16 s, of which a quarter is for this part
    assert part.enough(4.0, factor=1.0) == 17
    assert whole.part(0.5).part(0.5).enough(4.0, factor=1.0) == 17
    spent = CpuBudget(1e-9).part(0.25)
    assert spent.enough(4.0, factor=1.0) == 17
