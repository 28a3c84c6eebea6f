"""Held-out predictions of the samples: kernel machines, and boosted trees on tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from gapscope.base.errors import GapscopeError
from gapscope.base.random_streams import make_generator
from gapscope.base.samples import Samples
from gapscope.batch_norm.refresh import with_data_statistics
from gapscope.inspection.validation import Ready, ready
from gapscope.labels.boosted_trees import out_of_fold_log_probabilities
from gapscope.labels.error_model import LOG_TEMPERATURES, SCORE_TEMPERATURES, tempered_loss
from gapscope.labels.noise_rate import fit_robustly
from gapscope.measures._forward import forward_pass
from gapscope.measures.fitted_labels import network_before_training
from gapscope.measures.kernel_leave_one_out import kernel_columns
from gapscope.statistics.baselines import (
    RIDGES,
    linear_spectrum,
    rbf_spectrum,
    sample_features,
    target_matrix,
)
from gapscope.statistics.kernel_ridge import Spectrum, select_ridge

# Trees are not fitted if a kernel machine leaves a smaller cross-entropy (nats): all labels agree with it, nearly.
SUFFICIENT_LOSS = 0.05


@dataclass(frozen=True)
class ClassView:
    """Held-out scores of the classes, by one method."""

    method: str
    scores: Tensor  # [n, C]
    temperatures: tuple[float, ...]  # candidates, of which one makes the scores logits
    error: float  # held-out cross-entropy in nats, with the best temperature

    @property
    def predictions(self) -> Tensor:
        """Predicted classes [n]."""
        return self.scores.argmax(1)


@dataclass(frozen=True)
class TargetView:
    """Leave-one-out predictions of regression targets, by one kernel machine."""

    method: str
    spectrum: Spectrum
    targets: Tensor  # with clipped residuals
    ridge: float  # in units of the mean eigenvalue
    predictions: Tensor  # leave-one-out predictions [n, k]
    error: float  # median residual


View = TypeVar("View", ClassView, TargetView)


def class_view(method: str, scores: Tensor, labels: Tensor, temperatures: tuple[float, ...]) -> ClassView:
    """Return a view of held-out scores with its cross-entropy."""
    error, _ = tempered_loss(scores, labels.to(scores.device), temperatures)
    return ClassView(method, scores, temperatures, error)


def kernel_class_view(method: str, spectrum: Spectrum, labels: Tensor, n_classes: int) -> ClassView:
    """Fit one-hot labels [n, C] with the ridge of the smallest leave-one-out squared error."""
    targets = target_matrix(labels, n_classes).to(spectrum.device)
    _, loo = select_ridge(spectrum, targets, RIDGES)
    return class_view(method, loo.predictions, labels, SCORE_TEMPERATURES)


def _target_view(method: str, spectrum: Spectrum, targets: Tensor) -> TargetView:
    targets = targets.to(spectrum.device)
    clipped, ridge, predictions = fit_robustly(spectrum, targets)
    error = float((targets - predictions).abs().sum(1).median())
    return TargetView(method, spectrum, clipped, ridge, predictions, error)


def ntk_spectrum(prepared: Ready, *, seed: int) -> Spectrum:
    """Decompose the NTK on the samples, with 1,000 landmarks beyond 2,000 samples."""
    generator = make_generator(seed, "landmarks")
    return kernel_columns(prepared.network, prepared.samples.inputs, 2000, 1000, generator, None).spectrum()


def _baseline(views: Sequence[ClassView | TargetView], samples: Samples) -> Tensor:
    """Return leave-one-out predictions without a network: of the RBF ridge, or else the mean of the targets."""
    targets = target_matrix(samples.y.cpu())
    view = views[0] if views else None
    if isinstance(view, TargetView):
        return view.predictions
    scores = targets.mean(0).expand_as(targets).clone()
    if view is not None:
        # the view has a column for each class that occurs
        scores.fill_(-torch.inf)
        scores[:, samples.y.cpu().unique()] = view.scores.cpu()
    return scores


def _kernel_views(
    network: nn.Module | None, samples: Samples, fit: Callable[[str, Spectrum], View], seed: int
) -> tuple[list[View], list[str]]:
    """Return the views of all kernels that apply, and notes."""
    features, notes, views = sample_features(samples), list(samples.notes), []
    if features.shape[1]:
        views.append(fit("RBF ridge", rbf_spectrum(features)))
        views.append(fit("linear ridge", linear_spectrum(features)))
    if network is None:
        return views, notes
    before = network_before_training(ready(network, samples, needs=("outputs",)), _baseline(views, samples))
    if before.note:
        notes.append(before.note)
    if before.prepared is None:
        return views, notes
    prepared = before.prepared
    prepared = replace(prepared, network=with_data_statistics(prepared.network, prepared.samples.inputs))
    hidden = forward_pass(prepared.network, prepared.samples.inputs).features
    if hidden is not None:
        hidden = (hidden - hidden.mean(0)) / hidden.std(0, correction=0).mean().clamp_min(1e-12)
        views.append(fit("last hidden features", linear_spectrum(hidden)))
    try:
        views.append(fit("NTK", ntk_spectrum(prepared, seed=seed)))
    except GapscopeError as error:
        notes.append(f"The NTK was not used: {error}")
    return views, notes


def class_views(
    network: nn.Module | None, samples: Samples, labels: Tensor, n_classes: int, *, seed: int
) -> tuple[list[ClassView], list[str]]:
    """Return the views of class labels, smallest held-out cross-entropy first, and notes.

    Args:
        network: Untrained network, or None.
        samples: Samples with the original labels.
        labels: Labels as numbers 0 to C - 1 of the classes that occur.
        n_classes: Number of classes that occur, C.
        seed: Seed of the landmarks and the folds.
    """

    def fit(method: str, spectrum: Spectrum) -> ClassView:
        return kernel_class_view(method, spectrum, labels, n_classes)

    views, notes = _kernel_views(network, samples, fit, seed)
    if not views:
        return [], notes
    scores = None
    if min(view.error for view in views) > SUFFICIENT_LOSS:
        scores = out_of_fold_log_probabilities(samples, labels, n_classes, seed=seed)
    if scores is not None:
        views.append(class_view("boosted trees", scores, labels, LOG_TEMPERATURES))
    return sorted(views, key=lambda view: view.error), notes


def target_views(network: nn.Module | None, samples: Samples, *, seed: int) -> tuple[list[TargetView], list[str]]:
    """Return the views of regression targets, smallest residuals first, and notes."""
    targets = target_matrix(samples.y.cpu())

    def fit(method: str, spectrum: Spectrum) -> TargetView:
        return _target_view(method, spectrum, targets)

    views, notes = _kernel_views(network, samples, fit, seed)
    return sorted(views, key=lambda view: view.error), notes
