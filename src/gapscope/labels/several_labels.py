"""Errors in several labels per sample, and in labels of positions (tokens, pixels).

With several labels per sample, each label is a binary problem of its own; all share the decomposition of one kernel.
Positions are one problem of all classes, in which a position is predicted by the other samples alone
(`gapscope.measures.positions`). In both, the error model of class labels (`gapscope.labels.error_model`) gives the
probability of an error of every single label.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from gapscope.base.budget import CpuBudget
from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.labels.class_labels import assess_labels
from gapscope.labels.error_model import SCORE_TEMPERATURES, error_probabilities
from gapscope.labels.given_predictions import (
    HELD_FOR_ERROR,
    LEVEL,
    MIN_PREFERENCES,
    NO_INPUTS,
    NOT_LOOKED_AT,
    agreement_reason,
    fitted_note,
    least_gain,
    perfect_agreement,
    without_rate,
)
from gapscope.labels.given_view import given_view, note_on_certain
from gapscope.labels.kernel_views import (
    ClassView,
    class_view,
    iterate_kernels,
)
from gapscope.labels.prediction_columns import is_held_out, to_values
from gapscope.labels.results import LabelIssues, LabelNoiseEstimate
from gapscope.results.formatting import pluralize
from gapscope.statistics.baselines import RBF, held_out_predictions
from gapscope.statistics.intervals import wilson_interval

# A label that fewer samples have, or lack, cannot be told from noise.
MIN_PER_LABEL = 5


def _columns_of(probabilities: Float[Tensor, " n"]) -> Float[Tensor, "n 2"]:
    return torch.stack([1 - probabilities, probabilities], 1)


def _check_shares(pred_probs: Any, labels: Bool[Tensor, "n k"]) -> Float[Tensor, "n k"]:
    """Return probabilities of several labels, checked.

    Raises:
        InvalidInput: They have another shape than the labels, or lie outside [0, 1].
    """
    probabilities = to_values(pred_probs)
    if probabilities.shape != labels.shape:
        advice = "Pass the probability of each label of each sample."
        if probabilities.ndim > labels.ndim:
            advice = f'{advice} If the labels are classes of positions, pass gs.Samples(x, y, task="positions").'
        raise InvalidInput(
            f"Got pred_probs {list(probabilities.shape)}; {list(labels.shape)} is needed. {advice}"
        )
    if not bool(((probabilities >= 0) & (probabilities <= 1)).all()):
        raise InvalidInput(
            f"Got pred_probs from {float(probabilities.min()):.4g} to {float(probabilities.max()):.4g}; probabilities "
            "in [0, 1] are needed. Pass logits.sigmoid()."
        )
    return probabilities


def _views_of_labels(method: str, scores: Tensor, labels: Tensor) -> list[ClassView]:
    """Return one view per label of scores that are fitted to 0 and 1."""
    return [
        class_view(method, _columns_of(scores[:, k]), labels[:, k].long(), SCORE_TEMPERATURES)
        for k in range(labels.shape[1])
    ]


def _held_out_views(
    network: nn.Module | None,
    samples: Samples,
    notes: list[str],
    checked: list[int],
    groups: Int[Tensor, " n"] | None,
    budget: CpuBudget,
    known: Tensor | None,
) -> list[ClassView]:
    """Return one view per checked label, of the kernel with the smallest error (none if no input varies)."""
    labels = samples.y.cpu()
    targets = labels.double()
    fitted: dict[str, Tensor] = {}
    mean = targets.mean(0).expand_as(targets)
    kernels = iterate_kernels(
        network, samples, notes, lambda: fitted.get(RBF, mean), budget=budget, groups=groups,
        known=known,
    )  # fmt: skip
    for name, kernel in kernels:
        fitted[name] = held_out_predictions(kernel, targets, groups).cpu()
    candidates = [
        _views_of_labels(name, predictions[:, checked], labels[:, checked])
        for name, predictions in fitted.items()
    ]
    return min(candidates, key=lambda found: sum(view.error for view in found), default=[])


def _fitted_to_labels(
    probabilities: Float[Tensor, "n k"], views: list[ClassView], labels: Bool[Tensor, "n k"]
) -> str:
    """Return why probabilities of several labels look fitted to them ("" if they do not).

    Probabilities that contradict most of the labels that the held-out method holds for errors are not fitted to them.
    """
    held_out = torch.stack([view.predictions.cpu() for view in views], 1).bool()
    most_frequent = torch.maximum(labels.double().mean(0), 1 - labels.double().mean(0)).mean()
    own = (probabilities > 0.5) == labels
    least = least_gain(float(most_frequent))
    reason = agreement_reason(own, held_out == labels, views[0].method, least)
    if not reason:
        return ""
    errors = [
        error_probabilities(view.scores.cpu(), labels[:, k].long(), view.temperatures).error
        for k, view in enumerate(views)
    ]
    error = torch.stack(errors, 1)
    is_held = error >= HELD_FOR_ERROR
    if int(is_held.sum()) < MIN_PREFERENCES:
        return reason
    followed = float(own[is_held].double().mean())
    most = wilson_interval(followed, int(is_held.sum()), LEVEL)[1]
    if most < 1 - float(error[is_held].mean()) / 2:
        return ""
    return reason


def assess_several_labels(
    network: nn.Module | None,
    samples: Samples,
    *,
    pred_probs: Any = None,
    groups: Int[Tensor, " n"] | None = None,
    budget: CpuBudget,
    with_inputs: bool = True,
    known: Float[Tensor, "n d"] | None = None,
) -> tuple[LabelIssues, LabelNoiseEstimate]:
    """Rank every label of every sample by the probability that it is wrong, and estimate their noise.

    Args:
        network: Untrained or pretrained network, or None.
        samples: Samples with several labels each.
        pred_probs: Out-of-sample probabilities [n, K] of another model, in place of the kernels.
        groups: Group of each sample, which predicts none of its own samples.
        budget: CPU seconds for the features of the network.
        with_inputs: Whether the samples have inputs, whose kernels `pred_probs` are compared with.
        known: Last hidden features of a network, in place of the network.

    Raises:
        InvalidInput: No input varies, no label varies, or `pred_probs` are no probabilities.
    """
    labels = samples.y.cpu()
    counts = labels.sum(0)
    checked = [
        k
        for k, count in enumerate(counts.tolist())
        if MIN_PER_LABEL <= count <= len(labels) - MIN_PER_LABEL
    ]
    if not checked:
        raise InvalidInput(
            f"Every label must be present in {MIN_PER_LABEL} samples and absent in {MIN_PER_LABEL}; none is. Pass more "
            "samples."
        )
    notes: list[str] = []
    views: list[ClassView] = []
    reason = ""
    is_unknown = False
    if pred_probs is None or (with_inputs and not is_held_out(pred_probs)):
        views = _held_out_views(network, samples, notes, checked, groups, budget, known)
    if pred_probs is not None:
        probabilities = _check_shares(pred_probs, labels)[:, checked]
        if views:
            reason = _fitted_to_labels(probabilities, views, labels[:, checked])
        is_unknown = not views and not is_held_out(pred_probs)
        if is_unknown:
            notes.append(NOT_LOOKED_AT.format(what="labels", why=NO_INPUTS))
        if reason:
            reason = fitted_note(reason, "labels")
        else:
            views = [
                given_view(_columns_of(probabilities[:, j]), labels[:, k].long())
                for j, k in enumerate(checked)
            ]
            notes += note_on_certain(max(views, key=lambda view: view.certain))
    if not views:
        raise InvalidInput(
            "No input varies between the samples, so no label can be checked. Pass other features."
        )
    if len(checked) < labels.shape[1]:
        n = labels.shape[1] - len(checked)
        verb = "is" if n == 1 else "are"
        notes.append(
            f"{pluralize(n, 'label')} {verb} not checked: present or absent in fewer than {MIN_PER_LABEL} samples."
        )
    parts = [
        assess_labels(view, labels[:, k].long(), groups)
        for k, view in zip(checked, views, strict=True)
    ]
    places = [torch.full((len(labels), 1), k) for k in checked]
    issues = _joined(
        [replace(part, places=place) for (part, _), place in zip(parts, places, strict=True)]
    )
    words = samples.named_targets or range(labels.shape[1])
    noise = _mean_noise(
        {str(words[k]): noise for k, (_, noise) in zip(checked, parts, strict=True)}
    )
    issues = replace(issues, notes=tuple(notes), place_name="output", kind="multi-label")
    if is_unknown:
        reason = reason or perfect_agreement(noise)
    reason = reason or noise.abstained_because
    if reason:
        return without_rate(issues, noise, reason)
    return replace(issues, noise=noise), noise


def _mean_noise(by_label: Mapping[str, LabelNoiseEstimate]) -> LabelNoiseEstimate:
    """Return the noise of all labels: means over the labels of a sample, and of the ends of their intervals.

    Errors in the labels of one sample may go together, so that the interval is not made narrower. It is refused if one
    of the labels is not predicted well enough.
    """
    estimates = by_label.values()

    def mean(read: Callable[[LabelNoiseEstimate], float]) -> float:
        return fmean(map(read, estimates))

    refusals = [
        f"Label {k}: {reason}"
        for k, estimate in by_label.items()
        if (reason := estimate.abstained_because)
    ]
    return LabelNoiseEstimate(
        mean(lambda estimate: estimate.rate),
        mean(lambda estimate: estimate.low),
        mean(lambda estimate: estimate.high),
        mean(lambda estimate: estimate.clean_accuracy),
        sum(estimate.samples for estimate in estimates),
        accuracy=mean(lambda estimate: estimate.accuracy),
        most_frequent=mean(lambda estimate: estimate.most_frequent),
        is_upper_bound=any(estimate.is_upper_bound for estimate in estimates),
        refused=refusals[0] if refusals else "",
    )


def _with_every_probability(part: LabelIssues) -> LabelIssues:
    """Return the ranking of one label with NaN in place of probabilities that could be anything."""
    if len(part.error_probability):
        return part
    unknown = torch.full(part.indices.shape, math.nan, dtype=torch.float64)
    return replace(part, probability=unknown, error_probability=unknown)


def _joined(parts: list[LabelIssues]) -> LabelIssues:
    """Return one ranking of several, by the probability of an error."""
    parts = [_with_every_probability(part) for part in parts]

    def joined(read: Callable[[LabelIssues], Tensor]) -> Tensor:
        return torch.cat([read(part) for part in parts])

    flagged = joined(lambda part: torch.arange(len(part.indices)) < part.n_flagged)
    # of a label for which no precision can be promised, none is expected to be wrong
    expected = joined(
        lambda part: (
            part.error_probability if len(part.precision_curve) else 0 * part.error_probability
        )
    )
    # flagged labels first: of a label that is not predictable none is flagged
    by_margin = joined(lambda part: part.margin).argsort(stable=True)
    chances = joined(lambda part: part.error_probability).nan_to_num(0.0)
    keys = (chances + 2 * flagged)[by_margin]
    order = by_margin[keys.argsort(descending=True, stable=True)]
    n_flagged = int(flagged.sum())
    curve = torch.empty(0)
    if any(len(part.precision_curve) for part in parts):
        curve = expected[order].cumsum(0) / torch.arange(1, len(order) + 1)
    return LabelIssues(
        indices=joined(lambda part: part.indices)[order],
        given_labels=joined(lambda part: part.given_labels)[order],
        suggested_labels=joined(lambda part: part.suggested_labels)[order],
        margin=joined(lambda part: part.margin)[order],
        n_flagged=n_flagged,
        expected_precision=float(curve[n_flagged - 1])
        if n_flagged and len(curve)
        else float("nan"),
        noise=None,
        probability=joined(lambda part: part.probability)[order],
        error_probability=joined(lambda part: part.error_probability)[order],
        precision_curve=curve,
        method=parts[0].method,
        places=joined(lambda part: part.places)[order],
    )
