"""Evaluation of one measure on all samples or on a subset, with its standard error."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from gapscope.base.errors import GapscopeError
from gapscope.base.randomness import derive_seed
from gapscope.base.samples import Samples
from gapscope.inspection.memoization import memoize
from gapscope.inspection.validation import Ready
from gapscope.measures.budget import Allocation
from gapscope.measures.registry import Measure
from gapscope.results.readings import Reading, Readings

GROUPS = 8
# extremes of a subset are biased inwards by more than their spread
EXTREMES = "_fence"


@memoize
def interleaved_groups(samples: Samples, groups: int) -> list[Samples]:
    """Return interleaved groups that partition the samples."""
    return [samples.subset(torch.arange(j, len(samples), groups)) for j in range(groups)]


@memoize
def subsample(samples: Samples, n: int, seed: int) -> Samples:
    """Return n random samples in their order (subsets of one seed are nested)."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "samples within the budget"))
    order = torch.randperm(len(samples), generator=generator)
    return samples.subset(order[:n].sort().values)


def evaluate_on_subset(
    item: Measure,
    ready: Ready,
    share: Allocation,
    *,
    initial_state: Mapping[str, Any] | None,
    history: Sequence[Mapping[str, Any]] = (),
    options: Mapping[str, Any],
    seed: int,
) -> Readings:
    """Evaluate one measure on its subset of the samples.

    Args:
        item: The measure.
        ready: The network and all samples.
        share: Number of samples, and what else the plan says.
        options: The caller's options.
        seed: Seed of the samples and of what is drawn.

    Returns:
        Its readings; where samples are left out, each is an estimate of the number of all samples.
    """
    total, before = len(ready.samples), ready.initial_for(item, initial_state)

    def take(samples: Samples, purpose: str = "") -> Readings:
        given = {**share.options, **options}
        if "generator" in item.options:
            generator = torch.Generator().manual_seed(derive_seed(seed, (item.stream or item.name) + purpose))
            given.setdefault("generator", generator)
        return item(ready.network_for(item), samples, initial_state=before, history=history, **given)

    if share.n >= total:
        return _noted(take(ready.samples), "one probe a sample" if share.options else "")
    part = subsample(ready.samples, share.n, seed)
    how = f"{'probes on ' if share.options else ''}{share.n:,} of {total:,} samples"
    assert item.sampling is not None  # the plan leaves no samples out otherwise
    return _noted(_ESTIMATES[item.sampling.kind](take, part, total), how)


def _noted(readings: Readings, note: str) -> Readings:
    return Readings(replace(reading, note=reading.note or note) for reading in readings) if note else readings


Take = Callable[..., Readings]


def _mean(take: Take, part: Samples, total: int) -> Readings:
    """Estimate a mean over samples from group means, with finite-population standard error."""
    groups = interleaved_groups(part, GROUPS)
    taken_groups = [take(group, f" of group {j}") for j, group in enumerate(groups)]
    weights = [len(group) / len(part) for group in groups]
    left_out = math.sqrt(1 - len(part) / total)
    readings: list[Reading] = []
    for each in zip(*taken_groups, strict=True):
        values = [reading.value for reading in each]
        value = sum(weight * number for weight, number in zip(weights, values, strict=True))
        spread = statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan
        error = left_out * spread / math.sqrt(GROUPS)
        readings.append(_estimate(each, value, error))
    return Readings(readings)


def _sum(take: Take, part: Samples, total: int) -> Readings:
    """Estimate a sum over samples: value and standard error of the subset, scaled."""
    factor = total / len(part)
    return Readings(
        replace(reading, value=factor * reading.value, standard_error=factor * (reading.standard_error or 0.0))
        for reading in take(part)
    )


def _as_measured(take: Take, part: Samples, total: int) -> Readings:
    return take(part)


def _with_group_error(take: Take, part: Samples, total: int) -> Readings:
    """Return the number of the subset, with a standard error from eighths of it."""
    whole = take(part)
    try:
        groups = [take(group) for group in interleaved_groups(part, GROUPS)]
    except GapscopeError:  # no sample of a group is right, say: the number stands, its error is not known
        return Readings(replace(reading, standard_error=math.nan) for reading in whole)
    readings: list[Reading] = []
    for reading, *each in zip(whole, *groups, strict=True):
        known = not reading.number.endswith(EXTREMES)
        known = known and all(math.isfinite(found.value) for found in (reading, *each))
        spread = statistics.stdev(group.value for group in each) if known else math.nan
        readings.append(replace(reading, standard_error=spread / math.sqrt(GROUPS)))
    return Readings(readings)


_ESTIMATES: Mapping[str, Callable[[Take, Samples, int], Readings]] = {
    "mean": _mean,
    "sum": _sum,
    "own": _as_measured,
    "whole": _with_group_error,
}


def _estimate(each: Sequence[Reading], value: float, error: float) -> Reading:
    return replace(each[0], value=value, standard_error=error, seconds=sum(reading.seconds for reading in each))
