"""Samples: inputs with their targets, checked once at the door."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from gapscope.base.errors import InvalidInput, check_same_length


@dataclass(frozen=True)
class Samples:
    """Inputs [n, ...] (floating point) with targets: class labels [n] (int64), regression targets [n, K], or None."""

    inputs: Tensor
    targets: Tensor | None = None

    def __post_init__(self) -> None:
        _check_inputs(self.inputs)
        if self.targets is not None:
            check_same_length("inputs", len(self.inputs), "targets", len(self.targets))
            _check_targets(self.targets)

    def __len__(self) -> int:
        return len(self.inputs)

    def subset(self, indices: Tensor) -> Samples:
        """Return the samples at `indices`, in that order."""
        return Samples(self.inputs[indices], None if self.targets is None else self.targets[indices])

    @property
    def is_classification(self) -> bool:
        """Whether the targets are class labels."""
        return self.targets is not None and not self.targets.is_floating_point()


def _check_inputs(inputs: Any) -> None:
    if not isinstance(inputs, Tensor):
        raise InvalidInput(f"inputs must be a tensor; got {type(inputs).__name__}. Use torch.as_tensor(inputs).")
    if inputs.ndim < 2:
        raise InvalidInput(
            f"inputs must have shape [n, ...] with one row a sample; got {list(inputs.shape)}. "
            "For a single sample use x[None]."
        )
    if len(inputs) == 0:
        raise InvalidInput("inputs must hold at least one sample; got an empty tensor.")
    if inputs.is_floating_point():
        bad = int((~torch.isfinite(inputs)).flatten(1).any(1).sum())
        if bad:
            raise InvalidInput(
                f"inputs must be finite; {bad} of {len(inputs)} samples hold NaN or infinity. Drop them."
            )
    elif inputs.dtype not in (torch.int64, torch.int32):
        raise InvalidInput(
            f"inputs must be floating point (or int64 token ids); got {inputs.dtype}. "
            "Convert images with x.float() / 255."
        )


def _check_targets(targets: Tensor) -> None:
    if targets.is_floating_point():
        if targets.ndim != 2:
            raise InvalidInput(
                f"Regression targets must have shape [n, K]; got {list(targets.shape)}. For K = 1 use y[:, None]."
            )
        if not bool(torch.isfinite(targets).all()):
            raise InvalidInput("targets must be finite; got NaN or infinity. Drop those samples.")
        return
    if targets.ndim != 1 or targets.dtype != torch.int64:
        raise InvalidInput(
            f"Class labels must be an int64 tensor of shape [n]; got {targets.dtype} of shape {list(targets.shape)}. "
            "Use y.long(), or float targets [n, K] for regression."
        )
    if int(targets.min()) < 0:
        raise InvalidInput(f"Class labels must be 0 or larger; got {int(targets.min())}.")


def as_samples(data: Any) -> Samples:
    """Return Samples from a tensor x, a pair (x, y), Samples, a torch Dataset, or a DataLoader.

    Args:
        data: The data; a Dataset or DataLoader is read once, whole, in its own order.

    Returns:
        The samples, checked.

    Raises:
        InvalidInput: The data have another form, or hold nothing usable.
    """
    if isinstance(data, Samples):
        return data
    if isinstance(data, Tensor):
        return Samples(data)
    if isinstance(data, tuple | list) and len(data) == 2 and isinstance(data[0], Tensor):
        return Samples(*data)
    if isinstance(data, DataLoader):
        return _joined(list(data))
    if isinstance(data, Dataset):
        return _joined(list(DataLoader(data, batch_size=256)))
    raise InvalidInput(
        f"data must be a tensor x, a pair (x, y), Samples, a Dataset or a DataLoader; got {type(data).__name__}."
    )


def _joined(batches: list[Any]) -> Samples:
    if not batches:
        raise InvalidInput("data must hold at least one sample; the loader is empty.")
    if isinstance(batches[0], Tensor):
        return Samples(torch.cat(batches))
    if not isinstance(batches[0], list | tuple) or len(batches[0]) < 2:
        raise InvalidInput(
            f"A loader must yield x or (x, y); got a batch of type {type(batches[0]).__name__}. "
            "Wrap it so that it yields pairs."
        )
    return Samples(torch.cat([batch[0] for batch in batches]), torch.cat([batch[1] for batch in batches]))


def slices(n: int, chunk_size: int) -> Iterator[slice]:
    """Yield consecutive slices of at most `chunk_size` that cover range(n)."""
    if chunk_size < 1:
        raise InvalidInput(f"chunk_size must be at least 1; got {chunk_size}.")
    for start in range(0, n, chunk_size):
        yield slice(start, min(start + chunk_size, n))
