"""Kernel machines that judge labels without training: on the inputs, on given features, and on a network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from gapscope.base.errors import GapscopeError
from gapscope.base.random_streams import make_generator
from gapscope.base.samples import Samples
from gapscope.inspection.validation import ready
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
        ridge: The chosen ridge, in units of the mean eigenvalue.
        loo: Predictions of every sample from all others.
    """

    method: str
    spectrum: Spectrum
    ridge: float
    loo: LooResult


def _view(method: str, spectrum: Spectrum, targets: Tensor) -> KernelView:
    ridge, loo = select_ridge(spectrum, targets.to(spectrum.vectors.device), RIDGES)
    return KernelView(method, spectrum, ridge, loo)


def kernel_views(
    network: nn.Module | None, samples: Samples, *, seed: int, **options: Any
) -> tuple[list[KernelView], int, list[str]]:
    """Return every kernel machine that applies, the number of classes (or targets), and notes.

    Args:
        network: The untrained network, or None.
        samples: Samples with targets.
        seed: Seed of the landmarks.
        **options: `max_exact`, `landmarks` and `chunk_size` of the NTK.

    Returns:
        The views, best first by leave-one-out squared error.

    Raises:
        InvalidInput: The network does not fit the samples.
    """
    assert samples.targets is not None
    prepared = None if network is None else ready(network, samples, needs=("outputs",))
    n_classes = None
    if samples.is_classification:
        n_classes = max(int(samples.targets.max()) + 1, 2, 0 if prepared is None else prepared.n_outputs)
    targets = target_matrix(samples.targets.cpu(), n_classes)
    features, notes = sample_features(samples), list(samples.notes)
    views = []
    if features.shape[1]:
        views += [
            _view("RBF ridge", rbf_spectrum(features), targets),
            _view("linear ridge", linear_spectrum(features), targets),
        ]
    if prepared is not None:
        hidden = forward_pass(prepared.network, prepared.samples.inputs, chunk_size=options["chunk_size"]).features
        if hidden is not None:
            hidden = (hidden - hidden.mean(0)) / hidden.std(0, correction=0).mean().clamp_min(1e-12)
            views.append(_view("last hidden features", linear_spectrum(hidden), targets))
        try:
            columns = kernel_columns(
                prepared.network, prepared.samples.inputs, options["max_exact"], options["landmarks"],
                make_generator(seed, "landmarks"), options["chunk_size"],
            )  # fmt: skip
            views.append(_view("NTK", columns.spectrum(), targets))
        except GapscopeError as error:
            notes.append(f"The NTK was not used: {error}")
    views.sort(key=lambda view: view.loo.squared_error)
    return views, targets.shape[1], notes
