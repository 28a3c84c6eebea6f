"""Numbers in float64 that float32, the type of networks, cannot hold without a loss that matters."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gapscope.base.errors import InvalidInput, join_names

# A column loses digits if rounding moves its values by more than this part of their standard deviation: by judgment,
# R^2 then loses 1e-6. Less spread than the second part of its largest value is rounding in float64 itself.
MAX_LOSS, CONSTANT = 1e-3, 1e-12


@dataclass
class _Reading:
    """How data are read now.

    Attributes:
        is_exact: Whether float64 is kept where the default type loses digits.
        rounded: Names of columns that lost digits.
    """

    is_exact: bool
    rounded: list[str] = field(default_factory=list[str])

    @property
    def notes(self) -> list[str]:
        """The note about columns that lost digits, if there are any."""
        if not self.rounded:
            return []
        listed = join_names(dict.fromkeys(self.rounded))
        return [
            f"{listed}: in {torch.get_default_dtype()}, the type of networks, values so far from 0 lose digits. "
            "Subtract the mean of each of these columns first."
        ]


_READING: ContextVar[_Reading | None] = ContextVar("reading", default=None)


@contextmanager
def reading(*, is_exact: bool) -> Generator[_Reading]:
    """Decide in the body what becomes of float64 columns whose digits the default type loses.

    Args:
        is_exact: Whether they stay in float64 (where no network reads them); else they are rounded, and noted.
    """
    current = _Reading(is_exact)
    token = _READING.set(current)
    try:
        yield current
    finally:
        _READING.reset(token)


def in_default_type(values: Tensor, names: Sequence[str] = ()) -> Tensor:
    """Return values in float64 in the default type, or as they are if that loses digits (see `reading`).

    Args:
        values: Values [n, ...] in float64.
        names: Names of the columns, or one name for all; empty for numbers.

    Raises:
        InvalidInput: Values are too large for the default type.
    """
    default = torch.get_default_dtype()
    if values.dtype == default or values.ndim == 0 or len(values) == 0:
        return values.to(default)
    flat = values.reshape(len(values), -1)
    low, high = flat.aminmax(dim=0)
    largest = torch.maximum(low.abs(), high.abs())
    limit = torch.finfo(default).max
    is_too_large = largest.isfinite() & (largest > limit)
    if bool(is_too_large.any()):
        _refuse(largest, is_too_large, names, limit)
    spread = flat.std(0, correction=0)
    half_step = torch.finfo(default).eps / 2
    loses = (spread > CONSTANT * largest) & (largest * half_step > MAX_LOSS * spread)
    current = _READING.get()
    if current is None or not bool(loses.any()):
        return values.to(default)
    if current.is_exact:
        return values
    current.rounded += [_name(int(k), names) for k in torch.nonzero(loses)]
    return values.to(default)


def _name(k: int, names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    if names:
        return names[k]
    return f"column {k}"


def _refuse(largest: Tensor, is_too_large: Tensor, names: Sequence[str], limit: float) -> None:
    """Raise InvalidInput for values that the default type cannot hold."""
    k = int(torch.nonzero(is_too_large)[0])
    raise InvalidInput(
        f"Numbers must be at most {limit:.1e} in size ({torch.get_default_dtype()}); got "
        f"{float(largest[k]):.1e} in {_name(k, names)}. Divide this column by a constant, or take its logarithm."
    )
