"""Order of rows and columns by their values, so that results of random methods do not depend on the order passed."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gapscope.base.samples import slices

# values in memory at a time: 32 MB
MAX_VALUES = 4_000_000
# Odd numbers without a pattern, by which 64-bit hashes are multiplied: those of splitmix64, as signed integers.
FIRST, SECOND = -4658895280553007687, -7723592293110705685


def canonical_order(
    features: Float[Tensor, "n d"], labels: Int[Tensor, " n"]
) -> tuple[Int[Tensor, " n"], Int[Tensor, " d"]]:
    """Return orders of rows and of columns that depend on the values alone, not on their order.

    Rows with equal values and labels, and columns with equal values per label, keep the order passed.

    Args:
        features: Columns on the CPU; they are compared as float32.
        labels: Class of each row.
    """
    n, d = features.shape
    parts = list(slices(n, max(1, MAX_VALUES // max(d, 1))))
    salts = (labels.long() + 1) * FIRST
    of_columns = torch.zeros(d, dtype=torch.int64)
    for part in parts:
        bits = _bits(features[part])
        # the same sum in any order of the rows
        of_columns += (bits * (bits * SECOND + salts[part, None])).sum(0)
    weights = of_columns * SECOND + FIRST
    of_rows = torch.cat([(_bits(features[part]) * weights).sum(1) for part in parts])
    return (of_rows + salts).argsort(stable=True), of_columns.argsort(stable=True)


def _bits(values: Tensor) -> Tensor:
    """Return the bits of float32 values as integers, of which both zeros have the same."""
    return (values.float() + 0.0).contiguous().view(torch.int32).long()
