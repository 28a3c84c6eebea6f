"""Groups of samples that belong together, such as all recordings of a patient."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from gapscope.base.arrays import tensor_of
from gapscope.base.errors import InvalidInput


def value_per_sample(name: str, values: Any, samples: int) -> np.ndarray:
    """Return one value per sample, none of them missing.

    Raises:
        InvalidInput: There is not one value per sample.
    """
    import pandas

    if isinstance(values, str):
        raise InvalidInput(
            f"{name} must hold one label per sample; got the text {values!r}. Pass the column, frame[{values!r}]."
        )
    column = np.asarray(values)
    if column.ndim != 1:
        raise InvalidInput(
            f"{name} must hold one label per sample, shape [n]; got shape {list(column.shape)}."
        )
    if len(column) != samples:
        raise InvalidInput(
            f"{name} must hold one value per sample; got {len(column)} for {samples} samples."
        )
    # of texts and NaN, `asarray` makes texts alone; an empty cell of a text column is missing too
    objects = np.asarray(values, dtype=object)
    is_empty = [isinstance(value, str) and not value.strip() for value in objects.tolist()]
    missing = int((pandas.isna(objects) | np.array(is_empty)).sum())
    if missing:
        raise InvalidInput(
            f"{name} must hold a value for every sample; {missing} of {samples} are missing. Give each of these "
            "samples a value of its own, or drop them."
        )
    return column


def group_numbers(groups: Any, samples: int) -> np.ndarray:
    """Return the group of each sample as 0, 1, ... (one group per sample without groups).

    They are numbered as they appear, so that what groups are called changes no random division.
    """
    import pandas

    if groups is None:
        return np.arange(samples)
    labels = value_per_sample("groups", groups, samples)
    if labels.dtype.kind == "O":
        labels = np.array([str(label) for label in labels.tolist()])
    return pandas.factorize(labels)[0]


def numbered_groups(groups: Any, samples: int, what: str) -> Tensor:
    """Return the group of each sample as 0, 1, ...

    Args:
        groups: One label per sample.
        samples: Number of samples.
        what: What predicts samples without their group, as the subject of a sentence.

    Raises:
        InvalidInput: There is one group alone, or not one label per sample.
    """
    numbers = tensor_of(group_numbers(groups, samples))
    if not bool(numbers.any()):
        raise InvalidInput(f"{what} needs 2 groups or more; got 1. Pass groups=None.")
    return numbers


def group_tensor(groups: Any, samples: int, what: str) -> Tensor | None:
    """Return `numbered_groups`, None without groups.

    Args:
        groups: One label per sample, or None.
        samples: Number of samples.
        what: What predicts samples without their group, as the subject of a sentence.

    Raises:
        InvalidInput: There is one group alone, or not one label per sample.
    """
    return None if groups is None else numbered_groups(groups, samples, what)
