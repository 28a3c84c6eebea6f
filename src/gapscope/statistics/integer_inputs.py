"""Integers as inputs: numbers, or token ids, which without a network only the data can tell apart.

Columns of a frame are numbers (`gapscope.base.columns.input_column`). Elsewhere one integer per sample is a number,
and integers beside a mask or with the name of a tokenizer's output are token ids. A matrix of integers alone may be
both: counts, pixels or codes, or the tokens of a text. It is read in the way in which kernel ridge regression predicts
the targets with the smaller leave-one-out error; a tie is read as numbers.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gapscope.base.samples import Samples, with_parts
from gapscope.statistics.baselines import RIDGES, input_spectra, sample_features, target_matrix
from gapscope.statistics.kernel_ridge import select_ridge

# samples that decide, by judgment: their kernels take a second at most
MAX_DECIDING = 1000
# parts of the names of what tokenizers return
TOKEN_NAMES = ("ids", "mask", "token")
NUMBERS_NOTE = (
    "Integers without names of columns are read as numbers, which predict the targets at least as well as frequencies "
    "of token ids do. If they are token ids, pass ({'input_ids': x}, y)."
)
TOKENS_NOTE = (
    "Integers without names of columns are read as token ids, whose frequencies predict the targets better than the "
    "numbers do. If they are numbers, pass x.astype(float), or x.float() of a tensor."
)


def settle_integers(samples: Samples, *, are_numbers: bool = False) -> Samples:
    """Return samples whose integer inputs are floating point if they are numbers, and a note if the data decided.

    Args:
        samples: Samples that no network reads.
        are_numbers: Whether all integers are numbers, as for an estimator and for features.
    """
    parts = samples.parts
    whole = [k for k, part in enumerate(parts) if not part.is_floating_point()]
    if not whole:
        return samples
    if are_numbers:
        return _as_numbers(samples, whole)
    single = [k for k in whole if parts[k].ndim == 1]
    several = [k for k in whole if parts[k].ndim > 1]
    if not several or _are_tokens(samples, several):
        return _as_numbers(samples, single)
    numbers = _as_numbers(samples, whole)
    if any(bool((parts[k] < 0).any()) for k in several):
        return numbers
    tokens = _as_numbers(samples, single)
    if _error(numbers) <= _error(tokens):
        return replace(numbers, notes=(*samples.notes, NUMBERS_NOTE))
    return replace(tokens, notes=(*samples.notes, TOKENS_NOTE))


def _as_numbers(samples: Samples, which: list[int]) -> Samples:
    """Return samples with some inputs as floating-point numbers."""
    dtype = torch.get_default_dtype()
    parts = [part.to(dtype) if k in which else part for k, part in enumerate(samples.parts)]
    return with_parts(samples, parts)


def _are_tokens(samples: Samples, several: list[int]) -> bool:
    """Return whether integers [n, ...] are token ids, by their targets, names or mask, or as nothing can decide."""
    if samples.targets is None or samples.kind == "positions":
        return True
    names = samples.form and samples.form.names
    if names and any(word in names[k].lower() for k in several for word in TOKEN_NAMES):
        return True
    parts = [samples.parts[k] for k in several]
    shapes = [part.shape for part in parts]
    return any(shapes.count(part.shape) > 1 and bool((part <= 1).all()) for part in parts)


def _error(samples: Samples) -> float:
    """Return the smallest leave-one-out squared error of the kernels of the inputs, on a fixed part of the samples."""
    n = len(samples)
    if n > MAX_DECIDING:
        rows = torch.randperm(n, generator=torch.Generator().manual_seed(0))[:MAX_DECIDING]
        samples = samples.subset(rows.sort().values)
    targets = _indicators(samples.y.cpu())
    features = sample_features(samples)
    if not features.shape[1]:
        return float("inf")
    return min(
        select_ridge(kernel, targets, RIDGES)[1].squared_error
        for _, kernel in input_spectra(features)
    )


def _indicators(targets: Tensor) -> Tensor:
    """Return the targets of the kernels in float64: one column per class that occurs, or centred values."""
    if targets.is_floating_point() or targets.dtype == torch.bool:
        values = target_matrix(targets)
        return values - values.mean(0)
    return target_matrix(targets.unique(return_inverse=True)[1])
