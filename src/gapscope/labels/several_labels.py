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
from gapscope.labels.error_model import LOG_TEMPERATURES, SCORE_TEMPERATURES, error_probabilities
from gapscope.labels.given_predictions import (
    HELD_FOR_ERROR,
    LEVEL,
    MIN_GAIN,
    MIN_PREFERENCES,
    NO_INPUTS,
    NOT_LOOKED_AT,
    POSSIBLY_FITTED,
    SMALLEST,
    agreement_reason,
    check_probabilities,
    fitted_note,
    is_perfect,
    perfect_agreement,
    possible_classes,
    preference_reason,
    without_rate,
)
from gapscope.labels.kernel_views import (
    ClassView,
    class_view,
    iterate_kernels,
)
from gapscope.labels.prediction_columns import is_held_out, to_values
from gapscope.labels.results import LabelIssues, LabelNoiseEstimate
from gapscope.measures.positions import (
    LabelledPositions,
    input_scores,
    position_scores,
    prepare_positions,
    require_scores,
)
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


def _views_of_labels(
    method: str, scores: Tensor, labels: Tensor, is_probability: bool
) -> list[ClassView]:
    """Return one view per label of scores that are fitted to 0 and 1, or of probabilities."""
    views: list[ClassView] = []
    for k in range(labels.shape[1]):
        columns, temperatures = _columns_of(scores[:, k]), SCORE_TEMPERATURES
        if is_probability:
            columns, temperatures = columns.clamp_min(SMALLEST).log(), LOG_TEMPERATURES
        views.append(class_view(method, columns, labels[:, k].long(), temperatures))
    return views


def _held_out_views(
    network: nn.Module | None,
    samples: Samples,
    notes: list[str],
    checked: list[int],
    groups: Int[Tensor, " n"] | None,
    budget: CpuBudget,
) -> list[ClassView]:
    """Return one view per checked label, of the kernel with the smallest error (none if no input varies)."""
    labels = samples.y.cpu()
    targets = labels.double()
    fitted: dict[str, Tensor] = {}
    mean = targets.mean(0).expand_as(targets)
    for name, kernel in iterate_kernels(
        network, samples, notes, lambda: fitted.get(RBF, mean), budget=budget, groups=groups
    ):
        fitted[name] = held_out_predictions(kernel, targets, groups).cpu()
    candidates = [
        _views_of_labels(name, predictions[:, checked], labels[:, checked], False)
        for name, predictions in fitted.items()
    ]
    return min(candidates, key=lambda found: sum(view.error for view in found), default=[])


def _least_gain(most_frequent: float) -> float:
    """Return the gain of agreement that counts: of rare classes, few labels can be gained."""
    return MIN_GAIN * 2 * (1 - most_frequent)


def _fitted_to_labels(
    probabilities: Float[Tensor, "n k"], views: list[ClassView], labels: Bool[Tensor, "n k"]
) -> str:
    """Return why probabilities of several labels look fitted to them ("" if they do not).

    Probabilities that contradict most of the labels that the held-out method holds for errors are not fitted to them.
    """
    held_out = torch.stack([view.predictions.cpu() for view in views], 1).bool()
    most_frequent = torch.maximum(labels.double().mean(0), 1 - labels.double().mean(0)).mean()
    own = (probabilities > 0.5) == labels
    least = _least_gain(float(most_frequent))
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
) -> tuple[LabelIssues, LabelNoiseEstimate]:
    """Rank every label of every sample by the probability that it is wrong, and estimate their noise.

    Args:
        network: Untrained or pretrained network, or None.
        samples: Samples with several labels each.
        pred_probs: Out-of-sample probabilities [n, K] of another model, in place of the kernels.
        groups: Group of each sample, which predicts none of its own samples.
        budget: CPU seconds for the features of the network.
        with_inputs: Whether the samples have inputs, whose kernels `pred_probs` are compared with.

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
        views = _held_out_views(network, samples, notes, checked, groups, budget)
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
            views = _views_of_labels("pred_probs", probabilities, labels[:, checked], True)
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
    n_flagged, curve = int(flagged.sum()), torch.empty(0)
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


def _position_view(scores: dict[str, Tensor], labels: Tensor) -> tuple[ClassView, Tensor, Tensor]:
    """Return the view of the smallest held-out cross-entropy, the classes that occur, and the labels among them."""
    classes, codes = labels.unique(return_inverse=True)
    views = [
        class_view(name, part[:, classes.to(part.device)], codes, SCORE_TEMPERATURES)
        for name, part in scores.items()
    ]
    return min(views, key=lambda view: view.error), classes, codes


def _held_out_at(
    pred_probs: Any, samples: Samples, positions: LabelledPositions
) -> Float[Tensor, "m c"]:
    """Return the probabilities [m, C] of the positions from a result of `gapscope.out_of_sample`.

    Raises:
        InvalidInput: A position is not among the predicted ones.
    """
    rows = samples.original(positions.samples)[:, None]
    wanted = torch.cat([rows, positions.passed_places], 1).tolist()
    place = {tuple(index): k for k, index in enumerate(pred_probs.positions.tolist())}
    found = [place.get(tuple(index)) for index in wanted]
    if None in found:
        missing = wanted[found.index(None)]
        raise InvalidInput(
            f"Got held-out predictions without the labelled position {missing[1:]} of sample {missing[0]}; one of each "
            "is needed. Pass the same data and seed= to both."
        )
    probabilities = to_values(pred_probs)[found]
    return check_probabilities(probabilities, positions.labels)


def _probabilities_at(
    pred_probs: Any, samples: Samples, positions: LabelledPositions
) -> tuple[ClassView, Tensor, Tensor]:
    """Return the view of probabilities [n, ..., C] or [n, C, ...] of positions, classes, and labels among them."""
    if getattr(pred_probs, "positions", None) is not None:
        probabilities = _held_out_at(pred_probs, samples, positions)
        classes, codes = possible_classes(probabilities, positions.labels)
        scores = probabilities[:, classes].clamp_min(SMALLEST).log()
        return class_view("pred_probs", scores, codes, LOG_TEMPERATURES), classes, codes
    values = to_values(pred_probs)
    shape = tuple(samples.y.shape)
    grid = shape[1:]
    if (
        values.ndim == len(shape) + 1
        and tuple(values.shape[:-1]) != shape
        and tuple(values.shape[2:]) == grid
    ):
        values = values.movedim(1, -1)
    if tuple(values.shape[:-1]) != shape:
        needed = ", ".join(map(str, shape))
        raise InvalidInput(
            f"Got pred_probs {list(values.shape)}; [{needed}, classes] is needed. Pass a probability for each class of "
            "each position."
        )
    probabilities = check_probabilities(positions.take(values), positions.labels)
    classes, codes = possible_classes(probabilities, positions.labels)
    scores = probabilities[:, classes].clamp_min(SMALLEST).log()
    return class_view("pred_probs", scores, codes, LOG_TEMPERATURES), classes, codes


def _fitted_to_positions(
    view: ClassView,
    classes: Tensor,
    labels: Tensor,
    samples: Samples,
    positions: LabelledPositions,
) -> tuple[tuple[ClassView, Tensor, Tensor] | None, str]:
    """Return the view of held-out predictions by the inputs, and why probabilities look fitted (None, "" without)."""
    scores = input_scores(samples, positions)
    if not scores:
        return None, ""
    held_out = _position_view(scores, positions.labels)
    is_present = torch.isin(classes, held_out[1])
    codes = held_out[2]
    reason = preference_reason(view.scores[:, is_present].exp(), held_out[0], codes)
    own, other = view.predictions.cpu() == labels, held_out[0].predictions.cpu() == codes
    most_frequent = float(codes.bincount().max()) / len(codes)
    if not reason and is_perfect(float(own.double().mean()), most_frequent):
        reason = agreement_reason(own, other, held_out[0].method, _least_gain(most_frequent))
    return held_out, fitted_note(reason, "labels") if reason else ""


def assess_positions(
    network: nn.Module | None,
    samples: Samples,
    *,
    pred_probs: Any = None,
    groups: Int[Tensor, " n"] | None = None,
    with_inputs: bool = True,
    seed: int,
) -> tuple[LabelIssues, LabelNoiseEstimate]:
    """Rank the labels of positions by the odds that they are wrong, and estimate their noise.

    Args:
        network: Untrained or pretrained network, or None.
        samples: Samples with one label per position.
        pred_probs: Out-of-sample probabilities [n, ..., C] (or [n, C, ...]) of another model.
        groups: Group of each sample, which predicts none of its own samples.
        with_inputs: Whether the samples have inputs, by which positions are predicted.
        seed: Seed of the positions that are drawn, if there are many.

    Raises:
        InvalidInput: Nothing predicts the positions, or `pred_probs` are no probabilities.
    """
    notes = list(samples.notes)
    reason = ""
    held_out = None
    prepared, samples, positions = prepare_positions(network, samples, seed=seed, groups=groups)
    if prepared is not None:
        notes += [note for note in prepared.notes if note not in notes]
    if pred_probs is not None:
        view, classes, codes = _probabilities_at(pred_probs, samples, positions)
        notes += [positions.note] if positions.note else []
        if with_inputs and not is_held_out(pred_probs):
            held_out, reason = _fitted_to_positions(view, classes, codes, samples, positions)
            if held_out is not None and reason:
                view, classes, codes = held_out
    else:
        scores, found = position_scores(prepared, samples, positions)
        notes += found
        require_scores(scores, samples)
        view, classes, codes = _position_view(scores, positions.labels)
    issues, noise = assess_labels(view, codes, positions.held_out, of_positions=True)
    if pred_probs is not None and not is_held_out(pred_probs):
        if held_out is None:
            reason = perfect_agreement(noise)
        if not reason:
            notes.append(POSSIBLY_FITTED)
    order = issues.indices
    issues = replace(
        issues,
        places=positions.passed_places[order],
        indices=positions.samples[order],
        given_labels=classes[issues.given_labels],
        suggested_labels=classes[issues.suggested_labels],
    )
    issues = replace(issues, notes=tuple(notes), place_name="position", kind="positions")
    if reason:
        return without_rate(issues, noise, reason)
    return issues, noise
