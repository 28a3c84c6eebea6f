"""Exact and near-duplicates of rows (of pictures: test_picture_copies)."""

from __future__ import annotations

import torch

import gapscope as gs
from gapscope.labels.duplicates import conflicting_duplicates, duplicate_pairs, duplicates_in_test


def test_rows_of_tables() -> None:
    x = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    near = x[:3] + 1e-4
    both = gs.Samples(torch.cat([x, near]), torch.arange(53) % 2)
    assert duplicate_pairs(both) == [(0, 50), (1, 51), (2, 52)]
    assert conflicting_duplicates(both) == tuple(pair for pair in ((0, 50), (1, 51), (2, 52)) if sum(pair) % 2)


def test_few_samples() -> None:
    x = torch.tensor([[1.0, 2.0], [1.0, 2.0]])
    assert duplicate_pairs(gs.Samples(x)) == [(0, 1)]
    assert duplicates_in_test(gs.Samples(x), gs.Samples(x[:1])) == ((0, 0),)
