"""Kernel machines that predict each label from all others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from gapscope.base.errors import GapscopeError
from gapscope.base.random_streams import make_generator
from gapscope.base.samples import Samples
from gapscope.batch_norm.data_statistics import with_data_statistics
from gapscope.inspection.validation import Ready, ready
from gapscope.labels.regression import fit_robustly
from gapscope.measures._forward import forward_pass
from gapscope.measures.kernel_leave_one_out import kernel_columns
from gapscope.statistics.baselines import RIDGES, linear_spectrum, rbf_spectrum, sample_features, target_matrix
from gapscope.statistics.kernel_ridge import LooResult, Spectrum, select_ridge


@dataclass(frozen=True)
class KernelView:
    """Leave-one-out predictions of one kernel machine.

    Attributes:
        method: "RBF ridge", "linear ridge", "last hidden features" or "NTK".
        spectrum: Its kernel.
        ridge: The selected ridge, in units of the mean eigenvalue.
        loo: Predictions of every sample from all others.
        targets: Targets of the fit: one-hot labels, or regression targets with clipped residuals.
        error: Leave-one-out squared error, or the median residual for regression.
    """

    method: str
    spectrum: Spectrum
    ridge: float
    loo: LooResult
    targets: Tensor
    error: float


def classification_view(method: str, spectrum: Spectrum, targets: Tensor) -> KernelView:
    """Fit one-hot labels [n, C] with the ridge of the smallest leave-one-out error."""
    targets = targets.to(spectrum.vectors.device)
    ridge, loo = select_ridge(spectrum, targets, RIDGES)
    return KernelView(method, spectrum, ridge, loo, targets, loo.squared_error)


def _regression_view(method: str, spectrum: Spectrum, targets: Tensor) -> KernelView:
    targets = targets.to(spectrum.vectors.device)
    fit = fit_robustly(spectrum, targets)
    residuals = (targets - fit.loo.predictions).abs()
    return KernelView(method, spectrum, fit.ridge, fit.loo, fit.targets, float(residuals.sum(1).median()))


def ntk_spectrum(
    prepared: Ready, *, seed: int, max_exact: int = 2000, landmarks: int = 1000, chunk_size: int | None = None
) -> Spectrum:
    """Decompose the neural tangent kernel of a network on its samples."""
    generator = make_generator(seed, "landmarks")
    columns = kernel_columns(prepared.network, prepared.samples.inputs, max_exact, landmarks, generator, chunk_size)
    return columns.spectrum()


def kernel_views(
    network: nn.Module | None, samples: Samples, *, seed: int, **options: Any
) -> tuple[list[KernelView], int, list[str]]:
    """Return every kernel machine that applies, the number of classes (or targets), and notes.

    The machine of the smallest error comes first. `options` are `max_exact`, `landmarks` and `chunk_size` of the NTK.

    Raises:
        InvalidInput: The network does not fit the samples.
    """
    assert samples.targets is not None
    prepared = None if network is None else ready(network, samples, needs=("outputs",))
    n_classes, view = None, _regression_view
    if samples.is_classification:
        n_classes = max(int(samples.targets.max()) + 1, 2, 0 if prepared is None else prepared.n_outputs)
        view = classification_view
    targets = target_matrix(samples.targets.cpu(), n_classes)
    features, notes, views = sample_features(samples), list(samples.notes), []
    if features.shape[1]:
        views.append(view("RBF ridge", rbf_spectrum(features), targets))
        views.append(view("linear ridge", linear_spectrum(features), targets))
    if prepared is not None:
        chunk_size = options.get("chunk_size")
        prepared = replace(prepared, network=with_data_statistics(prepared.network, prepared.samples.inputs))
        hidden = forward_pass(prepared.network, prepared.samples.inputs, chunk_size=chunk_size).features
        if hidden is not None:
            hidden = (hidden - hidden.mean(0)) / hidden.std(0, correction=0).mean().clamp_min(1e-12)
            views.append(view("last hidden features", linear_spectrum(hidden), targets))
        try:
            views.append(view("NTK", ntk_spectrum(prepared, seed=seed, **options), targets))
        except GapscopeError as error:
            notes.append(f"The NTK was not used: {error}")
    views.sort(key=lambda one: one.error)
    return views, targets.shape[1], notes
