"""Ranking and rate of errors in class labels, from held-out scores of the classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor, nn

from gapscope.base.budget import CpuBudget
from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.labels.duplicates import exact_repeats
from gapscope.labels.error_model import ErrorProbabilities, error_probabilities
from gapscope.labels.kernel_views import ClassView, best_view
from gapscope.labels.noise_rate import margins_of
from gapscope.labels.results import LabelIssues, LabelNoiseEstimate
from gapscope.statistics.baselines import LooRow

# Flagged labels are more likely wrong than right.
MIN_PROBABILITY = 0.5
# In classes of up to three samples two others speak for the label, so that clean ones look wrong by chance: of 200
# such classes 4 of 600 clean labels were flagged at 0.5, 0.5 at 0.9 (means of 12 draws of overlapping Gaussians).
FEW_SAMPLES, MIN_PROBABILITY_OF_FEW = 3, 0.9


def assess_labels(
    view: ClassView, labels: Int[Tensor, " n"], groups: Int[Tensor, " n"] | None = None
) -> tuple[LabelIssues, LabelNoiseEstimate]:
    """Rank class labels [n] by the probability that they are wrong, and estimate their noise.

    Args:
        view: Held-out scores of the classes.
        labels: Given labels, columns of the scores.
        groups: Sample of each label, if the labels are those of positions.
    """
    labels = labels.to(view.scores.device)
    found = error_probabilities(view.scores, labels, view.temperatures, groups)
    noise = _noise_estimate(found, view.predictions, labels)
    return replace(_rank(view, labels, found, noise), method=view.method), noise


def refuse_repeats(
    samples: Samples, issues: LabelIssues, noise: LabelNoiseEstimate
) -> tuple[LabelIssues, LabelNoiseEstimate]:
    """Return the ranking without probabilities and rate, if half of the samples or more share their inputs.

    A copy predicts the label of its copy, right or wrong, and of equal inputs with different labels either may be
    right: an error cannot be told from an input to which both labels belong.

    Args:
        samples: The samples.
        issues: Their ranking.
        noise: The rate.
    """
    repeats = exact_repeats(samples)
    n_shared = len({i for pair in repeats for i in pair})
    # from half of the samples with inputs that others have too, no error can be told: of nine such tables among 50
    # data sets, four were answered with a precision of 0.8 or more, and lists held 0.10 to 0.39.
    if n_shared < 0.5 * len(samples):
        return issues, noise
    reason = (
        f"The rate of label noise cannot be estimated: {n_shared:,} of {len(samples):,} samples have the same inputs "
        f"as another one (different inputs: {len(samples) - len(repeats):,}). An error cannot be told from an input to "
        "which two labels belong. Drop repeated rows, or pass more columns."
    )
    nothing = torch.empty(0)
    issues = replace(
        issues, n_flagged=0, expected_precision=math.nan, noise=None, note=reason, probability=nothing,
        error_probability=nothing, precision_curve=nothing,
    )  # fmt: skip
    return issues, replace(noise, refused=reason)


def _noise_estimate(
    found: ErrorProbabilities, predicted: Tensor, labels: Tensor
) -> LabelNoiseEstimate:
    return LabelNoiseEstimate(
        found.rate,
        found.low,
        found.high,
        found.clean_accuracy,
        len(labels),
        accuracy=float((predicted == labels).double().mean()),
        most_frequent=float(labels.unique(return_counts=True)[1].max()) / len(labels),
    ).bounded_if_hard()


def _rank(
    view: ClassView, labels: Tensor, found: ErrorProbabilities, noise: LabelNoiseEstimate
) -> LabelIssues:
    _, codes, counts = labels.unique(return_inverse=True, return_counts=True)
    is_few = counts[codes] <= FEW_SAMPLES
    is_flagged = found.error >= torch.where(is_few, MIN_PROBABILITY_OF_FEW, MIN_PROBABILITY)
    order = found.order.argsort(descending=True, stable=True)
    if bool(is_few.any()):  # else the flagged ones come first already
        order = order[is_flagged[order].int().argsort(descending=True, stable=True)]
    error = found.error[order].cpu()
    curve, n_flagged, expected = torch.empty(0), 0, math.nan
    reason = noise.abstained_because
    # where the rate could be anything, so could the probability of each error
    if not reason:
        n_flagged = int(is_flagged.sum())
    if not reason and not noise.is_upper_bound:
        curve = error.cumsum(0) / torch.arange(1, len(error) + 1)
        if n_flagged:
            expected = float(curve[n_flagged - 1])
        else:
            expected = math.nan
    return LabelIssues(
        indices=order.cpu(),
        given_labels=labels[order].cpu(),
        suggested_labels=view.predictions[order].cpu(),
        margin=margins_of(view.scores, labels)[order].cpu(),
        n_flagged=n_flagged,
        expected_precision=expected,
        noise=None if reason else noise,
        note=reason,
        probability=found.suggestion[order].cpu(),
        error_probability=error,
        precision_curve=curve,
        log_odds=found.order[order].cpu(),
    )


def assess_classes(
    network: nn.Module | None,
    samples: Samples,
    *,
    seed: int,
    budget: CpuBudget | None = None,
    rows: Sequence[LooRow] = (),
) -> tuple[LabelIssues, LabelNoiseEstimate]:
    """Assess class labels by the best held-out predictions of the classes that occur.

    Args:
        network: Untrained network, or None.
        samples: Samples with class labels.
        seed: Seed of the landmarks and the folds.
        budget: CPU seconds for the rows of the network; None for no limit.
        rows: Rows of a forecast of these samples without a network, see `best_view`.

    Raises:
        InvalidInput: No input varies.
    """
    # labels may be far apart, as identifiers are: only classes that occur get a column
    classes, codes = samples.y.cpu().unique(return_inverse=True)
    view, notes = best_view(
        network, samples, codes, len(classes), seed=seed, budget=budget, rows=rows
    )
    if view is None:
        raise InvalidInput(
            "No input varies between the samples, so no label can be checked. Pass other features."
        )
    issues, noise = assess_labels(view, codes)
    named = replace(
        issues,
        given_labels=classes[issues.given_labels],
        suggested_labels=classes[issues.suggested_labels],
        notes=tuple(notes),
    )
    return named, noise
