"""Errors in labels of positions (tokens, pixels), each predicted without its whole sample or group."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.labels.class_labels import assess_labels
from gapscope.labels.error_model import SCORE_TEMPERATURES
from gapscope.labels.given_predictions import (
    POSSIBLY_FITTED,
    agreement_reason,
    check_probabilities,
    fitted_note,
    is_perfect,
    least_gain,
    perfect_agreement,
    possible_classes,
    preference_reason,
    without_rate,
)
from gapscope.labels.given_view import given_view, note_on_certain
from gapscope.labels.kernel_views import (
    ClassView,
    class_view,
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
        return given_view(probabilities[:, classes], codes), classes, codes
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
    return given_view(probabilities[:, classes], codes), classes, codes


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
    own = view.predictions.cpu() == labels
    other = held_out[0].predictions.cpu() == codes
    most_frequent = float(codes.bincount().max()) / len(codes)
    if not reason and is_perfect(float(own.double().mean()), most_frequent):
        reason = agreement_reason(own, other, held_out[0].method, least_gain(most_frequent))
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
    notes += note_on_certain(view)
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
