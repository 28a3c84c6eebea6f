"""Errors in several labels per sample, and in labels of positions (tokens, pixels).

With several labels per sample, each label is a binary problem of its own; all share the decomposition of one kernel.
Positions are one problem of all classes, in which a position is predicted by the other samples alone
(`gapscope.measures.positions`). In both, the error model of class labels (`gapscope.labels.error_model`) gives the
probability of an error of every single label.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from gapscope.base.errors import GapscopeError, InvalidInput
from gapscope.base.samples import Samples
from gapscope.inspection.validation import ready
from gapscope.labels.class_labels import assess_labels
from gapscope.labels.error_model import LOG_TEMPERATURES, SCORE_TEMPERATURES
from gapscope.labels.given_predictions import SEVERAL, SMALLEST, check_probabilities, is_held_out
from gapscope.labels.kernel_views import ClassView, class_view
from gapscope.labels.results import LabelIssues
from gapscope.measures.cpu_budget import CpuBudget, forward_seconds
from gapscope.measures.embed import extract_features
from gapscope.measures.fitted_labels import features_spectrum, network_before_training
from gapscope.measures.positions import LabelledPositions, position_scores, prepare_positions, require_scores
from gapscope.results.formatting import pluralize
from gapscope.statistics.baselines import LINEAR, RBF, RIDGES, linear_spectrum, rbf_spectrum, sample_features
from gapscope.statistics.kernel_ridge import Spectrum, select_ridge

NO_RATE = (
    "The rate of label noise is not estimated: labels of one sample are not independent, and no interval was judged "
    "for them"
)
# A label that fewer samples have, or lack, cannot be told from noise.
MIN_PER_LABEL = 5


def _columns_of(probabilities: Float[Tensor, " n"]) -> Float[Tensor, "n 2"]:
    return torch.stack([1 - probabilities, probabilities], 1)


def _kernels(network: nn.Module | None, samples: Samples, budget: CpuBudget) -> tuple[dict[str, Spectrum], list[str]]:
    """Return the kernels of the inputs and of the last hidden features, and notes."""
    inputs, notes = sample_features(samples), list(samples.notes)
    kernels: dict[str, Spectrum] = {}
    if inputs.shape[1]:
        kernels = {RBF: rbf_spectrum(inputs), LINEAR: linear_spectrum(inputs)}
    if network is None:
        return kernels, notes
    prepared = ready(network, samples, needs=("outputs",))
    notes += [note for note in prepared.notes if note not in notes]
    forward = forward_seconds(prepared)
    if shortage := budget.shortage(forward):
        notes.append(f"The network was not used: {shortage}")
        return kernels, notes
    targets = samples.y.cpu().double()
    baseline = targets.mean(0).expand_as(targets)
    if kernels:
        baseline = select_ridge(kernels[RBF], targets, RIDGES)[1].predictions
    with budget.enforced(prepared.network):
        before = network_before_training(prepared, baseline)
        notes += [before.note] if before.note else []
        if before.prepared is None:
            return kernels, notes
        try:
            features = extract_features(before.prepared.network, before.prepared.samples)
            kernels["last hidden features"] = features_spectrum(features.values)
        except GapscopeError as error:
            notes.append(f"The last hidden features were not used: {error}")
    return kernels, notes


def _check_shares(pred_probs: Any, labels: Bool[Tensor, "n k"]) -> Float[Tensor, "n k"]:
    """Return probabilities of several labels, checked.

    Raises:
        InvalidInput: They have another shape than the labels, or lie outside [0, 1].
    """
    probabilities = torch.as_tensor(np.asarray(pred_probs)).detach().double().cpu()
    if probabilities.shape != labels.shape:
        raise InvalidInput(
            f"Got pred_probs {list(probabilities.shape)}; {list(labels.shape)} is needed. Pass the probability of each "
            "label of each sample."
        )
    if not bool(((probabilities >= 0) & (probabilities <= 1)).all()):
        raise InvalidInput(
            f"Got pred_probs from {float(probabilities.min()):.4g} to {float(probabilities.max()):.4g}; probabilities "
            "in [0, 1] are needed. Pass logits.sigmoid()."
        )
    return probabilities


def _views_of_labels(method: str, scores: Tensor, labels: Tensor, is_probability: bool) -> list[ClassView]:
    """Return one view per label of scores that are fitted to 0 and 1, or of probabilities."""
    views: list[ClassView] = []
    for k in range(labels.shape[1]):
        columns, temperatures = _columns_of(scores[:, k]), SCORE_TEMPERATURES
        if is_probability:
            columns, temperatures = columns.clamp_min(SMALLEST).log(), LOG_TEMPERATURES
        views.append(class_view(method, columns, labels[:, k].long(), temperatures))
    return views


def assess_several_labels(
    network: nn.Module | None, samples: Samples, *, pred_probs: Any = None, budget: CpuBudget
) -> LabelIssues:
    """Rank every label of every sample by the probability that it is wrong.

    Args:
        network: Untrained or pretrained network, or None.
        samples: Samples with several labels each.
        pred_probs: Out-of-sample probabilities [n, K] of another model, in place of the kernels.
        budget: CPU seconds for the features of the network.

    Raises:
        InvalidInput: No input varies, no label varies, or `pred_probs` are no probabilities.
    """
    labels = samples.y.cpu()
    counts = labels.sum(0)
    checked = [k for k, count in enumerate(counts.tolist()) if MIN_PER_LABEL <= count <= len(labels) - MIN_PER_LABEL]
    if not checked:
        raise InvalidInput(
            f"Every label must be present in {MIN_PER_LABEL} samples and absent in {MIN_PER_LABEL}; none is. Pass more "
            "samples."
        )
    notes: list[str] = []
    if pred_probs is not None:
        probabilities = _check_shares(pred_probs, labels)
        views = _views_of_labels("pred_probs", probabilities[:, checked], labels[:, checked], True)
        notes = [] if is_held_out(pred_probs) else [SEVERAL]
    else:
        kernels, notes = _kernels(network, samples, budget)
        if not kernels:
            raise InvalidInput("No input varies between the samples, so no label can be checked. Pass other features.")
        fitted = {name: select_ridge(kernel, labels.double(), RIDGES)[1] for name, kernel in kernels.items()}
        candidates = [
            _views_of_labels(name, loo.predictions[:, checked], labels[:, checked], False)
            for name, loo in fitted.items()
        ]
        views = min(candidates, key=lambda found: sum(view.error for view in found))
    if len(checked) < labels.shape[1]:
        n = labels.shape[1] - len(checked)
        verb = "is" if n == 1 else "are"
        notes.append(
            f"{pluralize(n, 'label')} {verb} not checked: present or absent in fewer than {MIN_PER_LABEL} samples."
        )
    parts: list[LabelIssues] = []
    for k, view in zip(checked, views, strict=True):
        part, _ = assess_labels(view, labels[:, k].long())
        parts.append(_with_place(part, torch.full((len(labels), 1), k)))
    return replace(_joined(parts), notes=tuple(notes), place_name="output", kind="multi-label")


def _with_place(part: LabelIssues, places: Tensor) -> LabelIssues:
    """Return a ranking with the place of each label within its sample, without the rate."""
    return replace(part, places=places, noise=None, note=NO_RATE + ".")


def _joined(parts: list[LabelIssues]) -> LabelIssues:
    """Return one ranking of several, by the probability of an error."""
    flagged = torch.cat([torch.arange(len(part.indices)) < part.n_flagged for part in parts])
    error = torch.cat([part.error_probability for part in parts])
    # flagged labels first: of a label that is not predictable none is flagged
    margin = torch.cat([part.margin for part in parts])
    by_margin = margin.argsort(stable=True)
    keys = error[by_margin] + 2 * flagged[by_margin]
    order = by_margin[keys.argsort(descending=True, stable=True)]
    error, n_flagged = error[order], int(flagged.sum())
    curve = error.cumsum(0) / torch.arange(1, len(error) + 1)

    def joined(read: Callable[[LabelIssues], Tensor]) -> Tensor:
        return torch.cat([read(part) for part in parts])[order]

    return replace(
        parts[0],
        indices=joined(lambda part: part.indices),
        given_labels=joined(lambda part: part.given_labels),
        suggested_labels=joined(lambda part: part.suggested_labels),
        margin=margin[order],
        probability=joined(lambda part: part.probability),
        error_probability=error,
        places=joined(lambda part: part.places),
        precision_curve=curve,
        n_flagged=n_flagged,
        expected_precision=float(curve[n_flagged - 1]) if n_flagged else float("nan"),
    )


def _position_view(scores: dict[str, Tensor], positions: LabelledPositions) -> ClassView:
    """Return the view of the smallest held-out cross-entropy."""
    views = [class_view(name, part, positions.labels, SCORE_TEMPERATURES) for name, part in scores.items()]
    return min(views, key=lambda view: view.error)


def _probabilities_at(pred_probs: Any, samples: Samples, positions: LabelledPositions) -> ClassView:
    """Return the view of probabilities [n, ..., C] or [n, C, ...] of positions."""
    values = torch.as_tensor(np.asarray(pred_probs)).detach().double().cpu()
    shape = tuple(samples.y.shape)
    grid = shape[1:]
    if values.ndim == len(shape) + 1 and tuple(values.shape[:-1]) != shape and tuple(values.shape[2:]) == grid:
        values = values.movedim(1, -1)
    if tuple(values.shape[:-1]) != shape:
        needed = ", ".join(map(str, shape))
        raise InvalidInput(
            f"Got pred_probs {list(values.shape)}; [{needed}, classes] is needed. Pass a probability for each class of "
            "each position."
        )
    probabilities = check_probabilities(positions.take(values), positions.labels)
    return class_view("pred_probs", probabilities.clamp_min(SMALLEST).log(), positions.labels, LOG_TEMPERATURES)


def assess_positions(network: nn.Module | None, samples: Samples, *, pred_probs: Any = None, seed: int) -> LabelIssues:
    """Rank the labels of positions by the probability that they are wrong.

    Args:
        network: Untrained or pretrained network, or None.
        samples: Samples with one label per position.
        pred_probs: Out-of-sample probabilities [n, ..., C] (or [n, C, ...]) of another model.
        seed: Seed of the positions that are drawn, if there are many.

    Raises:
        InvalidInput: Nothing predicts the positions, or `pred_probs` are no probabilities.
    """
    notes = list(samples.notes)
    prepared, samples, positions = prepare_positions(network, samples, seed=seed)
    if prepared is not None:
        notes += [note for note in prepared.notes if note not in notes]
    if pred_probs is not None:
        view = _probabilities_at(pred_probs, samples, positions)
        notes += [positions.note] if positions.note else []
        notes += [] if is_held_out(pred_probs) else [SEVERAL]
    else:
        scores, found = position_scores(prepared, samples, positions)
        notes += found
        require_scores(scores, samples)
        view = _position_view(scores, positions)
    issues, _ = assess_labels(view, positions.labels)
    order = issues.indices
    issues = replace(_with_place(issues, positions.passed_places[order]), indices=positions.samples[order])
    return replace(issues, notes=tuple(notes), place_name="position", kind="positions")
