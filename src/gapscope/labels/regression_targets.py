"""Ranking of wrong regression targets, and an upper bound of their fraction."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from scipy import stats
from torch import Tensor

from gapscope.base.random_streams import make_generator
from gapscope.data.number_text import MAX_CATEGORIES
from gapscope.labels.canary_ranking import rank_label_issues
from gapscope.labels.kernel_views import TargetView
from gapscope.labels.noise_rate import (
    noise_rate_interval,
    regression_canaries,
    residual_margins,
    robust_spread,
    smallest_ratio,
    unit_of,
)
from gapscope.labels.results import LabelIssues, LabelNoiseEstimate
from gapscope.statistics.intervals import wilson_interval

# The rate is the smallest ratio over the canaries' margins from this quantile upwards.
QUANTILE = 0.3


def assess_targets(
    view: TargetView, targets: Tensor, seed: int
) -> tuple[LabelIssues, LabelNoiseEstimate]:
    """Assess regression targets [n, k] by leave-one-out residuals, compared with canaries.

    Args:
        view: Leave-one-out predictions.
        targets: Given targets.
        seed: Seed of the exchanged targets and the resampling.
    """
    targets = targets.double().to(view.targets.device)
    unit = unit_of(targets)
    targets = targets / unit
    predictions = view.predictions / unit
    residuals = targets - predictions
    spread = robust_spread(residuals)
    margins = residual_margins(residuals, spread).cpu()
    generator = make_generator(seed, "canaries")
    corrupted = regression_canaries(
        view.spectrum, targets, view.targets / unit, view.ridge, predictions, generator
    )
    rate, low, high = noise_rate_interval(
        corrupted, None, quantile=QUANTILE, generator=make_generator(seed, "resampling")
    )
    outliers = int((-margins > outlier_limit(len(targets))).sum())
    # canaries are exchanged targets; errors smaller than these are seen where residuals are small
    high = max(high, wilson_interval(outliers / len(targets), len(targets))[1])
    r_squared = 1 - float((spread / robust_spread(targets)).square().mean())
    noise = LabelNoiseEstimate(
        rate,
        0.0,
        high,
        math.nan,
        len(targets),
        is_upper_bound=True,
        width=high - low,
        r_squared=r_squared,
    )
    issues = rank_label_issues(
        torch.arange(len(targets)), (targets * unit).squeeze(1).cpu(), (predictions * unit).squeeze(1).cpu(),
        margins, corrupted.canaries.flatten(), noise, fraction=rate,
    )  # fmt: skip
    # below the threshold of the bound, the fraction of wrong targets is largest
    _, threshold = smallest_ratio(
        corrupted.ordinary.flatten(), corrupted.canaries.flatten(), QUANTILE
    )
    if noise.abstained_because:
        n_flagged = 0
    else:
        n_flagged = int((margins <= threshold).sum())
    if outliers > n_flagged:
        first = "first target of the ranking has a residual"
        if outliers > 1:
            first = f"first {outliers} targets of the ranking have residuals"
        notes = (f"The {first} too large for a normal distribution: look at these.",)
    else:
        notes = ()
    return replace(
        issues, n_flagged=n_flagged, kind="regression", method=view.method, notes=notes
    ), noise


def outlier_limit(n: int) -> float:
    """Return the size, in standard deviations, that the largest of n normal residuals exceeds in 1 of 20 samples.

    >>> round(outlier_limit(500), 2)
    3.89
    """
    return float(stats.norm.isf(0.05 / (2 * n)))


def note_on_whole_numbers(targets: Tensor) -> str:
    """Return a sentence if targets look like class labels that became floating point, else an empty one."""
    values = targets.unique()
    if len(values) > MAX_CATEGORIES or bool((values != values.round()).any()):
        return ""
    return (
        f"The targets are {len(values)} different whole numbers in floating point, which were compared as amounts. "
        "Pass integers for class labels."
    )
