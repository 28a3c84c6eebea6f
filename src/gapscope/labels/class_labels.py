"""Ranking and rate of errors in class labels, from held-out scores of the classes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.labels.error_model import LOG_TEMPERATURES, ErrorProbabilities, error_probabilities
from gapscope.labels.kernel_views import ClassView, class_view, class_views
from gapscope.labels.noise_rate import margins_of
from gapscope.labels.results import LabelIssues, LabelNoiseEstimate
from gapscope.measures.cpu_budget import CpuBudget
from gapscope.results.estimate import percent

# Flagged labels are more likely wrong than right.
MIN_PROBABILITY = 0.5
# Predictions that agree with this fraction of the labels, and with so many more than a kernel does, are of samples that
# the model was trained on.
FITTED, MORE_THAN_KERNEL = 0.995, 0.05
TOLERANCE = 1e-3  # of the sum of probabilities, which may be stored in half precision
SMALLEST = 1e-6  # probability that 0 is replaced by


def assess_labels(view: ClassView, labels: Int[Tensor, " n"]) -> tuple[LabelIssues, LabelNoiseEstimate]:
    """Rank class labels [n] by the probability that they are wrong, and estimate their noise.

    Args:
        view: Held-out scores of the classes.
        labels: Given labels, columns of the scores.
    """
    labels = labels.to(view.scores.device)
    found = error_probabilities(view.scores, labels, view.temperatures)
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
    order = found.order.argsort(descending=True, stable=True)
    error = found.error[order].cpu()
    curve, n_flagged, expected = torch.empty(0), 0, math.nan
    reason = noise.unreliable_because
    # where the rate could be anything, so could the probability of each error
    if not reason:
        curve = error.cumsum(0) / torch.arange(1, len(error) + 1)
        n_flagged = int((error >= MIN_PROBABILITY).sum())
        expected = float(curve[n_flagged - 1]) if n_flagged else math.nan
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
    )


def check_probabilities(pred_probs: Any, labels: Int[Tensor, " n"]) -> Float[Tensor, "n c"]:
    """Return probabilities [n, C] in float64, checked.

    Args:
        pred_probs: Array or tensor [n, C] of out-of-sample probabilities; column k belongs to the label k.
        labels: Given labels.

    Raises:
        InvalidInput: The shape does not fit, a row does not sum to 1, or a label has no column.
    """
    probabilities = torch.as_tensor(np.asarray(pred_probs)).detach().double().cpu()
    n = len(labels)
    if probabilities.ndim != 2 or len(probabilities) != n or probabilities.shape[1] < 2:
        got = list(probabilities.shape)
        raise InvalidInput(f"Got pred_probs {got}; [{n}, classes] is needed. Pass a probability for each class.")
    sums = probabilities.sum(1)
    off = ~((sums - 1).abs() <= TOLERANCE)
    if bool(off.any()) or bool((probabilities < 0).any()):
        first = int(off.nonzero()[0]) if bool(off.any()) else int((probabilities < 0).any(1).nonzero()[0])
        raise InvalidInput(
            f"Got pred_probs of which row {first} sums to {float(sums[first]):.4g}; probabilities that sum to 1 are "
            "needed. Pass logits.softmax(1)."
        )
    if int(labels.max()) >= probabilities.shape[1]:
        raise InvalidInput(
            f"Got the label {int(labels.max())} and pred_probs of {probabilities.shape[1]} classes; a column for each "
            "class is needed. Number the classes from 0 on."
        )
    return probabilities


def assess_probabilities(
    pred_probs: Any, samples: Samples, *, with_inputs: bool, seed: int
) -> tuple[LabelIssues, LabelNoiseEstimate]:
    """Assess labels by probabilities of the user's own model.

    Args:
        pred_probs: Out-of-sample probabilities [n, C].
        samples: Samples with the labels.
        with_inputs: Whether the samples have inputs that a kernel machine can be fitted to.
        seed: Seed of the folds of that comparison.

    Raises:
        InvalidInput: A kernel machine predicts far fewer labels, so that these are predictions of training samples.
    """
    labels = samples.y.cpu()
    probabilities = check_probabilities(pred_probs, labels)
    view = class_view("pred_probs", probabilities.clamp_min(SMALLEST).log(), labels, LOG_TEMPERATURES)
    issues, noise = assess_labels(view, labels)
    if noise.accuracy < FITTED:
        return issues, noise
    agrees = f"pred_probs agree with {percent(noise.accuracy, 1)} of the labels"
    if not with_inputs:
        note = f"{agrees}. If the model was trained on these samples, pass out-of-sample probabilities instead."
        return replace(issues, notes=(*issues.notes, note)), noise
    best = best_view(None, samples, labels, probabilities.shape[1], seed=seed)[0]
    accuracy = 0.0 if best is None else float((best.predictions.cpu() == labels).double().mean())
    if best is not None and accuracy < noise.accuracy - MORE_THAN_KERNEL:
        raise InvalidInput(
            f"{agrees}, and {best.method} with {percent(accuracy, 1)} (leave-one-out): these are predictions of "
            "samples that the model was trained on. Pass out-of-sample probabilities, as cross_val_predict returns."
        )
    return issues, noise


def best_view(
    network: nn.Module | None,
    samples: Samples,
    labels: Tensor,
    n_classes: int,
    *,
    seed: int,
    budget: CpuBudget | None = None,
) -> tuple[ClassView | None, list[str]]:
    """Return the view of the smallest held-out cross-entropy (None if no input varies), and notes."""
    views, notes = class_views(network, samples, labels, n_classes, seed=seed, budget=budget)
    return (views[0] if views else None), notes


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
