"""Ranking of samples by margins, compared with those of canaries."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gapscope.labels.results import LabelIssues, LabelNoiseEstimate


def rank_label_issues(
    indices: Int[Tensor, " n"],
    labels: Int[Tensor, " n"],
    suggested: Int[Tensor, " n"],
    margins: Float[Tensor, " n"],
    canaries: Float[Tensor, " m"],
    noise: LabelNoiseEstimate,
    *,
    fraction: float | None = None,
) -> LabelIssues:
    r"""Rank samples by margin and flag the expected number of errors.

    With F and G the distributions of margins of all samples and of canaries, the expected fraction of errors among the
    samples with a margin of at most t is $r\, G(t) / F(t)$ (`gapscope.labels.noise_rate`). `fraction` is r (default:
    the rate), `canaries` are the margins of canaries, `indices` those in the data. Nothing is flagged if the rate is
    unreliable, and no precision is expected if it is an upper bound.
    """
    order = margins.argsort(stable=True)
    reason = noise.abstained_because
    n = len(order)
    curve = torch.empty(0)
    n_flagged = 0
    expected = math.nan
    if not reason:
        below = torch.searchsorted(
            canaries.double().sort().values, margins[order].double(), right=True
        ) / len(canaries)
        fraction = noise.rate if fraction is None else fraction
        # at the margin of rank k, F is k / n
        n_flagged = min(round(fraction * n), n)
        if not noise.is_upper_bound:
            curve = (fraction * below.double() * n / torch.arange(1, n + 1)).clamp(max=1.0)
            if n_flagged:
                expected = float(curve[n_flagged - 1])
            else:
                expected = math.nan
    return LabelIssues(
        indices=indices[order],
        given_labels=labels[order],
        suggested_labels=suggested[order],
        margin=margins[order],
        n_flagged=n_flagged,
        expected_precision=expected,
        noise=None if reason else noise,
        note=reason,
        precision_curve=curve,
    )
