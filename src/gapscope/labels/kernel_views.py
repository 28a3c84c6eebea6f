"""Held-out predictions of the samples: kernel machines, and boosted trees on tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gapscope.base.budget import BudgetSpent, CpuBudget
from gapscope.base.errors import GapscopeError
from gapscope.base.random_streams import make_generator
from gapscope.base.samples import Samples
from gapscope.batch_norm.refresh import with_data_statistics
from gapscope.inspection.memoization import memo_scope
from gapscope.inspection.validation import Ready, ready
from gapscope.labels.boosted_trees import out_of_fold_log_probabilities
from gapscope.labels.error_model import LOG_TEMPERATURES, SCORE_TEMPERATURES, tempered_loss
from gapscope.labels.noise_rate import fit_robustly
from gapscope.measures.cpu_budget import COMBINATIONS, affordable_kernel, forward_seconds
from gapscope.measures.embed import extract_features
from gapscope.measures.fitted_labels import (
    FEATURES,
    MANY_PARAMETERS,
    features_carry,
    features_spectrum,
    is_large,
    network_before_training,
)
from gapscope.measures.kernel_leave_one_out import kernel_columns
from gapscope.statistics.baselines import (
    INPUT_KERNELS,
    RBF,
    LooRow,
    held_out_predictions,
    input_spectra,
    kernel_row,
    sample_features,
    target_matrix,
)
from gapscope.statistics.kernel_ridge import Spectrum

# From this fraction of equally certain predictions on, nothing tells errors from mistakes of the model. Full trees have
# 1.0, leaves of two samples 0.86, five nearest neighbours 0.4 to 0.7, whose lists held what they promised.
HARD = 0.75


@dataclass(frozen=True)
class ClassView:
    """Held-out scores of the classes, by one method."""

    method: str
    scores: Tensor  # [n, C]
    temperatures: tuple[float, ...]  # candidates, of which one makes the scores logits
    error: float  # held-out cross-entropy in nats, with the best temperature
    certain: float = 0.0  # fraction of passed predictions that are 0 and 1, or as good as that

    @property
    def predictions(self) -> Tensor:
        """Predicted classes [n]."""
        return self.scores.argmax(1)

    @property
    def is_certain(self) -> bool:
        """Whether so many predictions are equally certain that they do not tell how sure the model is."""
        return self.certain >= HARD


@dataclass(frozen=True)
class TargetView:
    """Held-out predictions of regression targets, by one kernel machine or as passed."""

    method: str
    spectrum: Spectrum | None  # None for predictions that do not change with the targets
    targets: Tensor  # with clipped residuals
    ridge: float  # in units of the mean eigenvalue
    predictions: Tensor  # leave-one-out predictions [n, k]
    error: float  # median residual


View = TypeVar("View", ClassView, TargetView)


def class_view(
    method: str,
    scores: Tensor,
    labels: Tensor,
    temperatures: tuple[float, ...],
    *,
    certain: float = 0.0,
) -> ClassView:
    """Return a view of held-out scores with its cross-entropy."""
    error, _ = tempered_loss(scores, labels.to(scores.device), temperatures)
    return ClassView(method, scores, temperatures, error, certain)


def kernel_class_view(
    method: str,
    spectrum: Spectrum,
    labels: Tensor,
    n_classes: int,
    groups: Tensor | None = None,
) -> ClassView:
    """Fit one-hot labels [n, C] with the ridge of the smallest squared error of held-out predictions."""
    targets = target_matrix(labels, n_classes).to(spectrum.device)
    return _ridge_view(method, held_out_predictions(spectrum, targets, groups), labels)


def _ridge_view(method: str, predictions: Tensor, labels: Tensor) -> ClassView:
    """Return the view of leave-one-out predictions [n, C] of a ridge regression."""
    return class_view(method, _with_own_weight(predictions, labels), labels, SCORE_TEMPERATURES)


def _with_own_weight(scores: Tensor, labels: Tensor) -> Tensor:
    """Return leave-one-out scores in which a class of few samples has the same weight for its own samples."""
    own = labels.to(scores.device)[:, None]
    counts = labels.bincount(minlength=scores.shape[1]).double().to(scores.device)
    # without one of its m samples, a class has (m - 1) / m of its weight in the predictions, and all others have
    # theirs: with few samples the given label loses although it is right. Of 600 clean samples in 200 classes 4
    # were flagged with the weight given back, 20 to 40 without; above ten samples it makes no difference.
    weights = torch.where(counts <= 10, counts / (counts - 1).clamp_min(1), 1.0)
    # a negative score would become more negative
    given = scores.gather(1, own)
    return scores.scatter(1, own, torch.maximum(given * weights[own], given))


def _target_view(
    method: str, spectrum: Spectrum, targets: Tensor, groups: Tensor | None
) -> TargetView:
    targets = targets.to(spectrum.device)
    clipped, ridge, predictions = fit_robustly(spectrum, targets)
    if groups is not None:
        predictions = held_out_predictions(spectrum, clipped, groups)
        error = float((targets - predictions).abs().sum(1).median())
        # as predictions that were passed: refits to other targets would divide the groups
        return TargetView(method, None, targets, math.nan, predictions, error)
    error = float((targets - predictions).abs().sum(1).median())
    return TargetView(method, spectrum, clipped, ridge, predictions, error)


# samples of the exact NTK, and its landmarks beyond
KERNEL = {
    "max_exact": 2000,
    "landmarks": 1000,
}


def ntk_spectrum(prepared: Ready, *, seed: int, options: Mapping[str, Any] = KERNEL) -> Spectrum:
    """Decompose the NTK on the samples, by default with 1,000 landmarks beyond 2,000 samples."""
    columns = kernel_columns(
        prepared.network,
        prepared.samples.inputs,
        generator=make_generator(seed, "landmarks"),
        chunk_size=None,
        **options,
    )
    return columns.spectrum()


def _baseline(views: Sequence[ClassView | TargetView], samples: Samples) -> Tensor:
    """Return leave-one-out predictions without a network: of the RBF ridge, or else the mean of the targets."""
    targets = target_matrix(samples.y.cpu())
    view = next((view for view in views if view.method == RBF), None)
    if isinstance(view, TargetView):
        return view.predictions
    scores = targets.mean(0).expand_as(targets).clone()
    if view is not None:
        # the view has a column for each class that occurs
        scores.fill_(-torch.inf)
        scores[:, samples.y.cpu().unique()] = view.scores.cpu()
    return scores


_NO_NTK = f"The NTK was not used: above {MANY_PARAMETERS:,} parameters these features suffice."


def _is_carried(
    features: Spectrum, baseline: Tensor, targets: Tensor, groups: Tensor | None
) -> bool:
    """Return whether features predict significantly better than the predictions without a network."""
    n_classes = None if targets.is_floating_point() else baseline.shape[1]
    row = kernel_row(FEATURES, "network", features, targets, n_classes, groups)
    return features_carry(row, LooRow("baseline", "inputs", math.nan, baseline.cpu()), targets)


def iterate_kernels(
    network: nn.Module | None,
    samples: Samples,
    notes: list[str],
    baseline: Callable[[], Tensor],
    *,
    budget: CpuBudget,
    seed: int | None = None,
    groups: Int[Tensor, " n"] | None = None,
    known: Float[Tensor, "n d"] | None = None,
) -> Iterator[tuple[str, Spectrum]]:
    """Yield name and decomposition of all kernels that apply: of the inputs, then of the network.

    Args:
        network: Untrained or pretrained network, or None.
        samples: The samples.
        notes: List to which sentences about the data and the network are added.
        baseline: Leave-one-out predictions without a network, called after the kernels of the inputs.
        budget: CPU seconds for the kernels of the network.
        seed: Seed of the landmarks of the NTK; None to leave the NTK out.
        groups: Group of each sample, which predicts none of its own samples.
        known: Last hidden features of a network, in place of the network.
    """
    features = sample_features(samples)
    notes += samples.notes
    if features.shape[1]:
        yield from input_spectra(features)
    if known is not None:
        yield FEATURES, features_spectrum(known)
    if network is None:
        return
    prepared = ready(network, samples, needs=("outputs",))
    notes += [note for note in prepared.notes if note not in notes]
    forward = forward_seconds(prepared)
    if shortage := budget.shortage(forward):
        notes.append(f"The network was not used: {shortage}")
        return
    hidden = None
    with memo_scope(), budget.enforced(prepared.network):
        held_out = baseline()
        try:
            before = network_before_training(prepared, held_out, groups)
        except BudgetSpent as error:
            notes.append(f"The network was not used: {error}")
            return
        notes += [before.note] if before.note else []
        if before.prepared is None:
            return
        prepared = before.prepared
        try:
            hidden = extract_features(prepared.network, prepared.samples)
            notes += hidden.notes
        except GapscopeError as error:
            notes.append(f"The last hidden features were not used: {error}")
    spectrum = None
    if hidden is not None:
        spectrum = features_spectrum(hidden.values)
        yield FEATURES, spectrum
    if seed is None:
        return
    if (
        spectrum is not None
        and is_large(prepared.bare)
        and _is_carried(spectrum, held_out, samples.y.cpu(), groups)
    ):
        notes.append(_NO_NTK)
        return
    prepared = replace(
        prepared, network=with_data_statistics(prepared.network, prepared.samples.inputs)
    )
    several: dict[str, Any] = {"combinations": None} if prepared.n_outputs > COMBINATIONS else {}
    try:
        options, note = affordable_kernel(
            prepared.network,
            prepared.samples,
            KERNEL | several,
            budget,
            n_outputs=prepared.n_outputs,
            forward=forward,
        )
        notes += [f"The NTK was not used. {note}" if options is None else note] if note else []
        if options is None:
            return
        with budget.enforced(prepared.network):
            spectrum = ntk_spectrum(prepared, seed=seed, options=options)
    except GapscopeError as error:
        notes.append(f"The NTK was not used: {error}")
        return
    yield "NTK", spectrum


def _kernel_views(
    network: nn.Module | None,
    samples: Samples,
    fit: Callable[[str, Spectrum], View],
    seed: int,
    budget: CpuBudget,
    groups: Tensor | None,
    known: Tensor | None = None,
) -> tuple[list[View], list[str]]:
    """Return the views of all kernels that apply, and notes."""
    notes: list[str] = []
    views: list[View] = []
    kernels = iterate_kernels(
        network,
        samples,
        notes,
        lambda: _baseline(views, samples),
        seed=seed,
        budget=budget,
        groups=groups,
        known=known,
    )
    for name, spectrum in kernels:
        views.append(fit(name, spectrum))
    return views, notes


def _fitted_kernels(rows: Sequence[LooRow], n_classes: int) -> list[LooRow]:
    """Return the rows of all kernels of the inputs; empty if one is missing, or if its columns are not the classes."""
    by_name = {row.method: row for row in rows}
    fitted = [by_name[kernel.name] for kernel in INPUT_KERNELS if kernel.name in by_name]
    if len(fitted) < len(INPUT_KERNELS) or any(
        row.predictions.shape[1] != n_classes for row in fitted
    ):
        return []
    return fitted


def best_view(
    network: nn.Module | None,
    samples: Samples,
    labels: Tensor,
    n_classes: int,
    *,
    seed: int,
    budget: CpuBudget | None = None,
    rows: Sequence[LooRow] = (),
    groups: Int[Tensor, " n"] | None = None,
    known: Float[Tensor, "n d"] | None = None,
) -> tuple[ClassView | None, list[str]]:
    """Return the view of class labels of the smallest held-out cross-entropy (None if no input varies), and notes.

    Args:
        network: Untrained network, or None.
        samples: Samples with the original labels.
        labels: Labels as numbers 0 to C - 1 of the classes that occur.
        n_classes: Number of classes that occur, C.
        seed: Seed of the landmarks and the folds.
        budget: CPU seconds for the rows of the network; None for no limit.
        rows: Rows of a forecast of these samples without a network, whose kernels of the inputs are used if all are
            there; without them they are fitted.
        groups: Group of each sample, which predicts none of its own samples.
        known: Last hidden features of a network, in place of the network.
    """

    def fit(method: str, spectrum: Spectrum) -> ClassView:
        return kernel_class_view(method, spectrum, labels, n_classes, groups)

    fitted = _fitted_kernels(rows, n_classes)
    if network is None and fitted:
        views = [_ridge_view(row.method, row.predictions, labels) for row in fitted]
        views += [] if known is None else [fit(FEATURES, features_spectrum(known))]
        notes = list(samples.notes)
    else:
        budget = budget or CpuBudget(None)
        views, notes = _kernel_views(network, samples, fit, seed, budget, groups, known)
    if not views:
        return None, notes
    scores = None
    # if a kernel machine leaves a smaller cross-entropy (nats), nearly all labels agree with it
    if min(view.error for view in views) > 0.05:
        try:
            scores = out_of_fold_log_probabilities(
                samples, labels, n_classes, seed=seed, groups=groups, budget=budget
            )
        except BudgetSpent as error:
            notes.append(str(error))
    if scores is not None:
        views.append(class_view("boosted trees", scores, labels, LOG_TEMPERATURES))
    return min(views, key=lambda view: view.error), notes


def target_views(
    network: nn.Module | None,
    samples: Samples,
    *,
    seed: int,
    budget: CpuBudget | None = None,
    groups: Int[Tensor, " n"] | None = None,
    known: Float[Tensor, "n d"] | None = None,
) -> tuple[list[TargetView], list[str]]:
    """Return the views of regression targets, smallest residuals first, and notes."""
    targets = target_matrix(samples.y.cpu())

    def fit(method: str, spectrum: Spectrum) -> TargetView:
        return _target_view(method, spectrum, targets, groups)

    budget = budget or CpuBudget(None)
    views, notes = _kernel_views(network, samples, fit, seed, budget, groups, known)
    return sorted(views, key=lambda view: view.error), notes
