"""Groups of nearly equal rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

import gapscope as gs
from gapscope.statistics import row_groups
from gapscope.statistics.row_groups import median_group_size


def _groups(size: int, noise: float) -> tuple[Tensor, Tensor]:
    """Return 300 rows in groups, in random order, and the number of each group."""
    generator = torch.Generator().manual_seed(0)
    numbers = torch.arange(300 // size).repeat_interleave(size)
    numbers = numbers[torch.randperm(len(numbers), generator=generator)]
    centres = torch.randn(len(numbers) // size, 8, generator=generator)
    return centres[numbers] + noise * torch.randn(len(numbers), 8, generator=generator), numbers


@pytest.mark.parametrize("size", [3, 5, 10])
def test_groups_are_found_in_any_order(size: int) -> None:
    x, numbers = _groups(size, 0.02)
    found = median_group_size(x)
    assert found is not None
    assert found[0] > 0.9
    assert found[1] == size
    # few groups per class may be the classes
    assert median_group_size(x, numbers) is None
    labels = numbers % 2
    finding = gs.check(None, (x, labels), only=["GS108"]).findings[0]
    assert f"near copies, in groups of about {size}" in finding.evidence


def test_independent_and_repeated_rows_are_no_groups() -> None:
    x = torch.randn(300, 8, generator=torch.Generator().manual_seed(0))
    for rows in (x, x[torch.arange(300) // 10], (3 * x).round()):
        found = median_group_size(rows)
        assert found is not None
        assert found[0] < 0.1


@pytest.mark.parametrize(
    "call",
    [
        lambda data: gs.forecast_accuracy(None, data),
        lambda data: gs.out_of_sample(None, data),
        lambda data: gs.find_label_issues(None, data),
        lambda data: gs.find_label_issues(
            None, (data[0], torch.stack([data[1] == 0, data[0][:, 0] > 0], 1))
        ),
        lambda data: gs.learning_curve(LogisticRegression(), data),
    ],
)
def test_functions_that_hold_out_single_samples_note_groups(
    call: Callable[[tuple[Tensor, Tensor]], Any],
) -> None:
    x, numbers = _groups(10, 0.02)
    assert "100 % of the samples have several near copies" in str(call((x, numbers % 2)))
    independent = torch.randn(300, 8, generator=torch.Generator().manual_seed(0))
    assert "near copies" not in str(call((independent, numbers % 2)))


def test_groups_that_are_passed_are_not_noted() -> None:
    x, numbers = _groups(10, 0.02)
    assert "near copies" not in str(gs.out_of_sample(None, (x, numbers % 2), groups=numbers))


def test_distances_in_parts_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x, _ = _groups(5, 0.02)
    whole = median_group_size(x)
    monkeypatch.setattr(row_groups, "MAX_DISTANCES", 2000)
    assert median_group_size(x) == whole
