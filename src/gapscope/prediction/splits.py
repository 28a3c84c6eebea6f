"""Which samples a training of a design sees, and which score it; groups stay whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gapscope.base.errors import InvalidInput, check_same_length


@dataclass(frozen=True, eq=False)
class Split:
    """One training: the samples it sees, and those that score it.

    Attributes:
        name: Says which training of its design it is.
        trained: Indices of the samples that it sees.
        scored: Indices of samples that it does not see.
        steps: Its optimizer steps, in multiples of a training run on all samples.
        is_continued: Whether it is scored by `gapscope.prediction.continuation`.
    """

    name: str
    trained: np.ndarray
    scored: np.ndarray
    steps: float = 1.0
    is_continued: bool = False


def group_numbers(groups: Any, samples: int) -> np.ndarray:
    """Return the group of each sample as 0, 1, ...; without groups every sample is its own.

    Args:
        groups: One label per sample (numbers or texts; list, array, tensor or column), or None.
        samples: Number of samples.

    Returns:
        Numbers [n].

    Raises:
        InvalidInput: There is not one label per sample.
    """
    if groups is None:
        return np.arange(samples)
    labels = np.asarray(groups)
    if labels.ndim != 1:
        raise InvalidInput(f"groups must hold one label per sample, shape [n]; got shape {list(labels.shape)}.")
    check_same_length("groups", len(labels), "samples", samples)
    return np.unique(labels, return_inverse=True)[1]


def random_partition(groups: np.ndarray, shares: Sequence[float], random: np.random.Generator) -> list[np.ndarray]:
    """Cut the samples into random parts of about the given shares; samples of one group share a part.

    Args:
        groups: Group of each sample, as `group_numbers` gives them.
        shares: Fractions of the samples, which sum to 1.
        random: Draws the order of the groups.

    Returns:
        Indices of the samples of each part. Without groups a part is off its share by less than one sample, with them
        by less than the group that lies on the cut.

    >>> [part.size for part in random_partition(np.arange(8), (0.5, 0.5), np.random.default_rng(0))]
    [4, 4]
    """
    sizes = np.bincount(groups)
    order = random.permutation(len(sizes))
    # a group belongs to the part in which its middle lies
    middle = sizes[order].cumsum() - sizes[order] / 2
    part_of_group = np.empty(len(sizes), dtype=int)
    part_of_group[order] = np.searchsorted(np.cumsum(shares)[:-1] * len(groups), middle, side="right")
    parts = part_of_group[groups]
    return [np.flatnonzero(parts == number) for number in range(len(shares))]


def _rest(samples: int, part: np.ndarray) -> np.ndarray:
    return np.setdiff1d(np.arange(samples), part)


def quarter_and_halves(groups: np.ndarray, random: np.random.Generator) -> tuple[Split, Split, Split]:
    """Return the training on a quarter, on the half that holds it, and on the other half; each scored on the rest."""
    first, second, third = random_partition(groups, (0.25, 0.25, 0.5), random)
    half = np.sort(np.concatenate([first, second]))
    return (
        Split("quarter", first, _rest(len(groups), first)),
        Split("half", half, third),
        Split("other half", third, half),
    )


def continued_halves(groups: np.ndarray, steps: float, random: np.random.Generator) -> list[Split]:
    """Return the training runs on two random halves, each scored and continued on the other half."""
    first, second = random_partition(groups, (0.5, 0.5), random)
    name = "continued half" if steps == 1 else "short continued half"
    return [Split(f"{name} 1", first, second, steps, True), Split(f"{name} 2", second, first, steps, True)]


def folds(groups: np.ndarray, number: int, random: np.random.Generator) -> list[Split]:
    """Return the training runs of a cross-validation: each leaves one of `number` parts out and is scored on it."""
    parts = random_partition(groups, [1 / number] * number, random)
    return [
        Split(f"fold {index} of {number}", _rest(len(groups), part), part) for index, part in enumerate(parts, start=1)
    ]


def hold_out(groups: np.ndarray, share: float, random: np.random.Generator) -> Split:
    """Return one training that leaves a fraction of the samples out and is scored on it."""
    held, kept = random_partition(groups, (share, 1 - share), random)
    return Split("hold-out", kept, held)
