"""Tensors of arrays of users, which may be read-only."""

from __future__ import annotations

from typing import Any

import numpy
import torch
from torch import Tensor


def tensor_of(values: Any, dtype: torch.dtype | None = None) -> Tensor:
    """Return a tensor of an array, a list or a tensor; an array that cannot be written is copied: torch warns of it.

    Args:
        values: Array, list of numbers or tensor.
        dtype: Type of the tensor; None for that of the values.
    """
    source: Any = values
    if isinstance(values, numpy.ndarray) and not source.flags.writeable:
        source = source.copy()
    return torch.as_tensor(source, dtype=dtype)
