"""Designs of subset runs: which samples are trained on, and which are scored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gapscope.accuracy.extrapolation import SizedScore, extrapolate
from gapscope.base.errors import InvalidInput
from gapscope.base.groups import value_per_sample

# Standard deviation of networks around the score of continued runs, at an accuracy of 50 %: chosen for a coverage of
# 90 % on the networks that the rule was chosen on, before those that evaluate it were trained.
CONTINUED_ERROR = 0.045
# the standard error of a tenth of these samples is at most 0.01, and the network of the other nine tenths is usable
LARGE = 20_000
# the usual hold-out
HELD_OUT = 0.1


@dataclass(frozen=True)
class Design:
    """Training runs of one design, by the fractions of samples for training and scoring."""

    name: str
    trained_fraction: float
    scored_fraction: float
    cost: float  # optimizer steps of all runs, in multiples of a training run on all samples
    folds: int = 0
    is_continued: bool = (
        False  # whether both halves are continued (`gapscope.accuracy.subset_runs`)
    )


# cheapest first
LADDER = (
    Design("half and quarter", 0.5, 0.5, 2),
    Design("two halves and quarter", 0.5, 1.0, 3),
    Design("five folds and quarter", 0.8, 1.0, 6, folds=5),
    Design("ten folds and quarter", 0.9, 1.0, 11, folds=10),
)
HOLD_OUT = Design("hold-out", 1 - HELD_OUT, HELD_OUT, 1)
CONTINUED = Design("continued halves", 0.5, 1.0, 2, is_continued=True)
SHORT_CONTINUED = Design("short continued halves", 0.5, 1.0, 0.5, is_continued=True)
# with times: the latest quarter is scored
FORWARD = Design("latest quarter", 0.75, 0.25, 2)
DESIGNS = {design.name: design for design in (SHORT_CONTINUED, CONTINUED, *LADDER, HOLD_OUT)}


def predicted_width(
    design: Design, quarter: SizedScore, growth_per_doubling: float, samples: int
) -> float:
    """Return the expected width of a design's interval, from the training on a quarter."""
    trained_on = round(design.trained_fraction * samples)
    variance = quarter.variance * 0.75 / design.scored_fraction
    mean = quarter.mean + growth_per_doubling * math.log2(trained_on / quarter.trained_on)
    return extrapolate(SizedScore(trained_on, mean, variance), quarter, samples).width


@dataclass(frozen=True, eq=False)
class Split:
    """Training run of a design: indices of its training samples and of the scored samples."""

    name: str
    trained: np.ndarray
    scored: np.ndarray
    steps: float = 1.0  # optimizer steps, in multiples of a training run on all samples
    is_continued: bool = False  # whether it is scored by `gapscope.accuracy.subset_runs`


def forward_in_time(times: Any, samples: int) -> tuple[Split, Split]:
    """Return runs on the later half of the first three quarters, and on all of them, scored on the latest quarter.

    Samples of equal time are not divided.

    Raises:
        InvalidInput: The values cannot be sorted, or too few differ.
    """
    values = value_per_sample("times", times, samples)
    try:
        ordered = np.sort(values)
    except TypeError:
        kinds = ", ".join(sorted({type(value).__name__ for value in values.tolist()}))
        raise InvalidInput(
            f"times must be sortable, all of one type; got {kinds}. Convert them to numbers."
        ) from None
    start = ordered[round(0.375 * samples)]
    cut = ordered[round(0.75 * samples)]
    before = np.flatnonzero(values < cut)
    latest = np.flatnonzero(values >= cut)
    recent = before[values[before] >= start]
    if min(len(recent), len(before) - len(recent), len(latest)) < samples / 10:
        n_times = len(np.unique(values))
        raise InvalidInput(
            f"times must order the samples; got {n_times} different values for {samples} samples, too few to divide "
            "them. Pass finer times, or groups= for periods."
        )
    return Split("recent half", recent, latest), Split("three quarters", before, latest)


def random_partition(
    groups: np.ndarray, fractions: Sequence[float], random: np.random.Generator
) -> list[np.ndarray]:
    """Divide the samples at random into about these fractions, without dividing groups."""
    sizes = np.bincount(groups)
    order = random.permutation(len(sizes))
    # a group belongs to the part that holds its middle
    middle = sizes[order].cumsum() - sizes[order] / 2
    part_of_group = np.empty(len(sizes), dtype=int)
    part_of_group[order] = np.searchsorted(
        np.cumsum(fractions)[:-1] * len(groups), middle, side="right"
    )
    parts = part_of_group[groups]
    return [np.flatnonzero(parts == number) for number in range(len(fractions))]


def _rest(samples: int, part: np.ndarray) -> np.ndarray:
    return np.setdiff1d(np.arange(samples), part)


def quarter_and_halves(
    groups: np.ndarray, random: np.random.Generator
) -> tuple[Split, Split, Split]:
    """Return the runs on a quarter, on the half that holds it, and on the other half."""
    first, second, third = random_partition(groups, (0.25, 0.25, 0.5), random)
    half = np.sort(np.concatenate([first, second]))
    return (
        Split("quarter", first, _rest(len(groups), first)),
        Split("half", half, third),
        Split("other half", third, half),
    )


def continued_halves(groups: np.ndarray, steps: float, random: np.random.Generator) -> list[Split]:
    """Return the runs on two random halves, each scored and continued on the other."""
    first, second = random_partition(groups, (0.5, 0.5), random)
    if steps == 1:
        name = "continued half"
    else:
        name = "short continued half"
    return [
        Split(f"{name} 1", first, second, steps, True),
        Split(f"{name} 2", second, first, steps, True),
    ]


def folds(groups: np.ndarray, number: int, random: np.random.Generator) -> list[Split]:
    """Return the runs of a cross-validation with `number` folds."""
    parts = random_partition(groups, [1 / number] * number, random)
    return [
        Split(f"fold {index} of {number}", _rest(len(groups), part), part)
        for index, part in enumerate(parts, start=1)
    ]


def hold_out(groups: np.ndarray, fraction: float, random: np.random.Generator) -> Split:
    """Return one run that is scored on a held-out fraction of the samples."""
    held_out, rest = random_partition(groups, (fraction, 1 - fraction), random)
    return Split("hold-out", rest, held_out)
