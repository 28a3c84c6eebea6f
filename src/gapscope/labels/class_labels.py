"""Ranking and rate of errors in class labels, from held-out scores of the classes."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor, nn

from gapscope.base.budget import CpuBudget
from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.labels.error_model import ErrorProbabilities, error_probabilities
from gapscope.labels.kernel_views import ClassView, best_view
from gapscope.labels.noise_rate import margins_of
from gapscope.labels.results import LabelIssues, LabelNoiseEstimate

# Flagged labels are more likely wrong than right.
MIN_PROBABILITY = 0.5
# In classes of up to three samples two others speak for the label, so that clean ones look wrong by chance: of 200 such
# classes 4 of 600 clean labels were flagged at 0.5, 0.5 at 0.9 (means of 12 draws of overlapping Gaussians).
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


def _noise_estimate(found: ErrorProbabilities, predicted: Tensor, labels: Tensor) -> LabelNoiseEstimate:
    return LabelNoiseEstimate(
        found.rate,
        found.low,
        found.high,
        found.clean_accuracy,
        len(labels),
        accuracy=float((predicted == labels).double().mean()),
        most_frequent=float(torch.bincount(labels).max()) / len(labels),
    ).bounded_if_hard()


def _rank(view: ClassView, labels: Tensor, found: ErrorProbabilities, noise: LabelNoiseEstimate) -> LabelIssues:
    is_few = labels.bincount()[labels] <= FEW_SAMPLES
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
    network: nn.Module | None, samples: Samples, *, seed: int, budget: CpuBudget | None = None
) -> tuple[LabelIssues, LabelNoiseEstimate]:
    """Assess class labels by the best held-out predictions of the classes that occur.

    Args:
        network: Untrained network, or None.
        samples: Samples with class labels.
        seed: Seed of the landmarks and the folds.
        budget: CPU seconds for the rows of the network; None for no limit.

    Raises:
        InvalidInput: No input varies.
    """
    # labels may be far apart, as identifiers are: only classes that occur get a column
    classes, codes = samples.y.cpu().unique(return_inverse=True)
    view, notes = best_view(network, samples, codes, len(classes), seed=seed, budget=budget)
    if view is None:
        raise InvalidInput("No input varies between the samples, so no label can be checked. Pass other features.")
    issues, noise = assess_labels(view, codes)
    named = replace(
        issues,
        given_labels=classes[issues.given_labels],
        suggested_labels=classes[issues.suggested_labels],
        notes=tuple(notes),
    )
    return named, noise
