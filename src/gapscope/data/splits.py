"""The split of data sets that come without one."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from gapscope.base.errors import InvalidInput, check_range


def split_indices(
    n: int, test_fraction: float, split_seed: int
) -> tuple[Int64[Tensor, " train"], Int64[Tensor, " test"]]:
    """Return random indices of training samples and of round(test_fraction * n) test samples.

    The order is NumPy's RandomState(split_seed).permutation(n), which is the same in every version of NumPy.

    Raises:
        InvalidInput: An argument is out of range, or a part would be empty.

    >>> [len(part) for part in split_indices(10, 0.3, 0)]
    [7, 3]
    """
    check_range("test_fraction", test_fraction, 0, 1, low_open=True, high_open=True)
    check_range("split_seed", split_seed, 0, 2**32 - 1)
    n_test = round(test_fraction * n)
    if not 0 < n_test < n:
        raise InvalidInput(
            f"Training and test split must each keep at least one of the {n} samples; "
            f"test_fraction {test_fraction} gives {n - n_test} and {n_test}."
        )
    order = torch.from_numpy(np.random.RandomState(split_seed).permutation(n))
    return order[n_test:], order[:n_test]
