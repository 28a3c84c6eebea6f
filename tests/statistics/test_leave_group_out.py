"""Leave-one-out and leave-one-group-out in closed form, against explicit refits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gapscope.statistics import kernel_ridge, leave_group_out
from gapscope.statistics.baselines import RIDGES
from gapscope.statistics.kernel_ridge import (
    Spectrum,
    linear_spectrum,
    loo_predictions,
    nystroem_spectrum,
    spectrum,
)
from gapscope.statistics.leave_group_out import LeaveGroupOut, select_held_out

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(40, 3, generator=GENERATOR, dtype=torch.float64)
TARGETS = torch.randn(40, 2, generator=GENERATOR, dtype=torch.float64)
KERNEL = (-torch.cdist(X, X).square() / 4).exp()
GROUPS = torch.randint(9, (40,), generator=GENERATOR)
LANDMARKS = torch.arange(0, 40, 5)


def refitted(kernel: Tensor, groups: Tensor, ridge: float) -> Tensor:
    """Predict each group by kernel ridge regression with an intercept on all others, from the normal equations."""
    result = torch.empty_like(TARGETS)
    for group in groups.unique():
        out, rest = groups == group, groups != group
        n = int(rest.sum())
        system = torch.ones(n + 1, n + 1, dtype=torch.float64)
        system[:n, :n] = kernel[rest][:, rest] + ridge * torch.eye(n, dtype=torch.float64)
        system[n, n] = 0
        right = torch.cat([TARGETS[rest], torch.zeros(1, 2, dtype=torch.float64)])
        solution = torch.linalg.solve(system, right)
        result[out] = kernel[out][:, rest] @ solution[:n] + solution[n]
    return result


def spectrum_of(form: str) -> tuple[Spectrum, Tensor]:
    if form == "exact":
        return spectrum(KERNEL), KERNEL
    columns = KERNEL[:, LANDMARKS]
    approximation = (
        columns @ torch.linalg.pinv(KERNEL[LANDMARKS][:, LANDMARKS], hermitian=True) @ columns.T
    )
    square = KERNEL[LANDMARKS][:, LANDMARKS]
    return nystroem_spectrum(columns.__getitem__, square, len(columns)), approximation


@pytest.mark.parametrize("form", ["exact", "landmarks"])
@pytest.mark.parametrize("ridge", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize(
    "groups",
    [
        torch.arange(40),
        GROUPS,
        torch.arange(40) // 20,
        torch.cat([torch.zeros(39), torch.ones(1)]).long(),
    ],
    ids=["samples", "random", "halves", "one sample"],
)
def test_every_group_is_predicted_as_by_a_refit(form: str, ridge: float, groups: Tensor) -> None:
    kernel, matrix = spectrum_of(form)
    groups = groups.unique(return_inverse=True)[1]
    result = LeaveGroupOut(kernel, TARGETS, groups).predictions(ridge)
    torch.testing.assert_close(result, refitted(matrix, groups, ridge), atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("form", ["exact", "landmarks"])
def test_without_groups_it_is_leave_one_out(form: str) -> None:
    kernel, _ = spectrum_of(form)
    one_each = LeaveGroupOut(kernel, TARGETS, torch.arange(40)).predictions(0.1)
    torch.testing.assert_close(
        one_each, loo_predictions(kernel, TARGETS, 0.1).predictions, atol=1e-9, rtol=1e-9
    )


@pytest.mark.parametrize("groups", [None, GROUPS.unique(return_inverse=True)[1]])
def test_the_ridge_has_the_smallest_error_of_the_grid(groups: Tensor | None) -> None:
    kernel, _ = spectrum_of("exact")
    targets = TARGETS + 3 * X[:, :2]
    ridge, predictions = select_held_out(kernel, targets, RIDGES, groups)
    solver = LeaveGroupOut(kernel, targets, torch.arange(40) if groups is None else groups)
    errors = {
        each: float((solver.predictions(each * kernel.mean) - targets).square().sum())
        for each in RIDGES
    }
    assert errors[ridge] == min(errors.values())
    assert float((predictions - targets).square().sum()) == pytest.approx(errors[ridge])


def test_a_kernel_in_blocks_of_rows_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    targets, groups = TARGETS, torch.arange(40) // 4
    whole = linear_spectrum(X)
    monkeypatch.setattr(kernel_ridge, "MAX_ROWS_IN_MEMORY", 10)
    blocked = linear_spectrum(X)
    assert isinstance(blocked, kernel_ridge.BlockedSpectrum)
    for each in (torch.arange(40), groups, torch.arange(40) // 20):
        results = [
            LeaveGroupOut(kernel, targets, each).predictions(0.1) for kernel in (blocked, whole)
        ]
        torch.testing.assert_close(*results, atol=1e-8, rtol=1e-8)


def test_batches_of_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, _ = spectrum_of("exact")
    groups = torch.arange(40) // 4
    once = LeaveGroupOut(kernel, TARGETS, groups).predictions(0.1)
    monkeypatch.setattr(leave_group_out, "_MAX_ENTRIES", 1)
    torch.testing.assert_close(LeaveGroupOut(kernel, TARGETS, groups).predictions(0.1), once)


@pytest.mark.parametrize("size", [1, 4, 20])
def test_a_kernel_in_blocks_selects_the_ridge_on_a_part_of_the_groups(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets, groups = TARGETS + 3 * X[:, :2], torch.arange(40) // size
    whole = linear_spectrum(X)
    monkeypatch.setattr(kernel_ridge, "MAX_ROWS_IN_MEMORY", 10)
    monkeypatch.setattr(leave_group_out, "MAX_ROWS_IN_MEMORY", 10)
    monkeypatch.setattr(leave_group_out, "MAX_EVERY_RIDGE", 5)
    monkeypatch.setattr(leave_group_out, "BLOCK_ROWS", 7)
    solver = LeaveGroupOut(linear_spectrum(X), targets, groups)
    first = groups % 2 == 0
    expected = (solver.predictions(0.3) - targets)[first].square().sum()
    assert solver.squared_error(0.3, 2) == pytest.approx(float(expected))
    ridge, predictions = select_held_out(linear_spectrum(X), targets, RIDGES, groups)
    assert ridge in RIDGES
    exact = LeaveGroupOut(whole, targets, groups).predictions(ridge * whole.mean)
    torch.testing.assert_close(predictions, exact, atol=1e-8, rtol=1e-8)
