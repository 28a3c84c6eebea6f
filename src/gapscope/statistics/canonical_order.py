"""Order of rows and columns by their values, so that results of random methods do not depend on the order passed."""

from __future__ import annotations

import numpy
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from gapscope.base.random_streams import make_generator
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


def mixed_order(features: Float[Tensor, "n d"], labels: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Return an order of rows that depends on the values alone, in which equal rows do not follow their labels.

    `canonical_order` sorts equal rows by label: code that takes the first of them would see one label only.

    Args:
        features: Columns.
        labels: Class of each row.
    """
    order = canonical_order(features.cpu(), labels.cpu())[0]
    return order[torch.randperm(len(order), generator=make_generator(0, "equal rows"))].to(
        features.device
    )


def numbered_by_first_row(groups: Int[Tensor, " n"]) -> Int[numpy.ndarray, " n"]:
    """Return the groups as numbers 0, 1, ... in the order of their first rows.

    Args:
        groups: Group of each row.

    >>> numbered_by_first_row(torch.tensor([5, 2, 5, 0])).tolist()
    [0, 1, 0, 2]
    """
    _, first, number = numpy.unique(groups.cpu().numpy(), return_index=True, return_inverse=True)
    return first.argsort().argsort()[number]


def mean_over_ties(values: Shaped[Tensor, " n"], keys: Shaped[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Return the values averaged over the rows of equal keys, so that the order of these rows does not matter.

    Args:
        values: Values of each row.
        keys: Keys by which rows are sorted.

    >>> mean_over_ties(torch.tensor([1.0, 3.0, 7.0]), torch.tensor([0.5, 0.5, 0.2])).tolist()
    [2.0, 2.0, 7.0]
    """
    _, tie, counts = keys.unique(return_inverse=True, return_counts=True)
    return (tie.bincount(values) / counts)[tie]


def _bits(values: Tensor) -> Tensor:
    """Return the bits of float32 values as integers, of which both zeros have the same."""
    return (values.float() + 0.0).contiguous().view(torch.int32).long()
