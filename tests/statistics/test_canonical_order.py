"""Orders of rows and columns by their values: the same for the same table in any order."""

from __future__ import annotations

import pytest
import torch

from gapscope.statistics import canonical_order as module
from gapscope.statistics.canonical_order import canonical_order


@pytest.mark.parametrize("max_values", [7, 4_000_000])
def test_a_shuffled_table_has_the_same_order(
    monkeypatch: pytest.MonkeyPatch, max_values: int
) -> None:
    monkeypatch.setattr(module, "MAX_VALUES", max_values)
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 2, (50, 9), generator=generator).double()
    x[:, 0] = torch.randn(50, generator=generator)
    y = torch.randint(0, 3, (50,), generator=generator)
    rows, columns = canonical_order(x, y)
    assert rows.sort().values.tolist() == list(range(50))
    for _ in range(3):
        by, across = torch.randperm(50, generator=generator), torch.randperm(9, generator=generator)
        shuffled, labels = x[by][:, across], y[by]
        r, c = canonical_order(shuffled, labels)
        assert torch.equal(shuffled[r][:, c], x[rows][:, columns])
        assert torch.equal(labels[r], y[rows])


def test_columns_with_equal_counts_are_told_apart_by_labels() -> None:
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).repeat(5, 1)
    y = torch.tensor([0, 1]).repeat(5)
    first = canonical_order(x, y)[1]
    assert torch.equal(canonical_order(x.flip(1), y)[1], 1 - first)
