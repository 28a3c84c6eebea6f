"""Kernel machines of the samples, and duplicates among them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from gapscope.base.errors import GapscopeError, InvalidInput
from gapscope.base.random_streams import make_generator
from gapscope.base.samples import Samples
from gapscope.batch_norm.refresh import with_data_statistics
from gapscope.inspection.validation import Ready, ready
from gapscope.labels.noise_rate import fit_robustly
from gapscope.measures._forward import forward_pass
from gapscope.measures.fitted_labels import network_before_training
from gapscope.measures.kernel_leave_one_out import kernel_columns
from gapscope.statistics.baselines import (
    RIDGES,
    find_nearest,
    linear_spectrum,
    rbf_spectrum,
    sample_features,
    target_matrix,
)
from gapscope.statistics.kernel_ridge import Spectrum, select_ridge


@dataclass(frozen=True)
class KernelView:
    """Kernel machine with its leave-one-out predictions."""

    method: str
    spectrum: Spectrum
    targets: Tensor  # one-hot labels, or regression targets with clipped residuals
    ridge: float  # in units of the mean eigenvalue
    predictions: Tensor  # leave-one-out predictions [n, k]
    error: float  # leave-one-out squared error, or the median residual for regression


def classification_view(method: str, spectrum: Spectrum, targets: Tensor) -> KernelView:
    """Fit one-hot labels [n, C] with the ridge of the smallest leave-one-out error."""
    targets = targets.to(spectrum.device)
    ridge, loo = select_ridge(spectrum, targets, RIDGES)
    return KernelView(method, spectrum, targets, ridge, loo.predictions, loo.squared_error)


def _regression_view(method: str, spectrum: Spectrum, targets: Tensor) -> KernelView:
    targets = targets.to(spectrum.device)
    clipped, ridge, predictions = fit_robustly(spectrum, targets)
    error = float((targets - predictions).abs().sum(1).median())
    return KernelView(method, spectrum, clipped, ridge, predictions, error)


def ntk_spectrum(prepared: Ready, *, seed: int) -> Spectrum:
    """Decompose the NTK on the samples, with 1,000 landmarks beyond 2,000 samples."""
    generator = make_generator(seed, "landmarks")
    return kernel_columns(prepared.network, prepared.samples.inputs, 2000, 1000, generator, None).spectrum()


def kernel_views(network: nn.Module | None, samples: Samples, *, seed: int) -> tuple[list[KernelView], int, list[str]]:
    """Return the applicable kernel machines, best first, the number of classes, and notes."""
    prepared = None if network is None else ready(network, samples, needs=("outputs",))
    n_classes, view = None, _regression_view
    if samples.is_classification:
        n_classes = max(int(samples.y.max()) + 1, 2, 0 if prepared is None else prepared.n_outputs)
        view = classification_view
    targets = target_matrix(samples.y.cpu(), n_classes)
    features, notes, views = sample_features(samples), list(samples.notes), []
    if features.shape[1]:
        views.append(view("RBF ridge", rbf_spectrum(features), targets))
        views.append(view("linear ridge", linear_spectrum(features), targets))
    if prepared is not None:
        baseline = views[0].predictions if views else targets.mean(0).expand_as(targets)
        before = network_before_training(prepared, baseline)
        prepared, notes = before.prepared, [*notes, *([before.note] if before.note else [])]
    if prepared is not None:
        prepared = replace(prepared, network=with_data_statistics(prepared.network, prepared.samples.inputs))
        hidden = forward_pass(prepared.network, prepared.samples.inputs).features
        if hidden is not None:
            hidden = (hidden - hidden.mean(0)) / hidden.std(0, correction=0).mean().clamp_min(1e-12)
            views.append(view("last hidden features", linear_spectrum(hidden), targets))
        try:
            views.append(view("NTK", ntk_spectrum(prepared, seed=seed), targets))
        except GapscopeError as error:
            notes.append(f"The NTK was not used: {error}")
    views.sort(key=lambda item: item.error)
    return views, targets.shape[1], notes


# A near-duplicate is closer than this fraction of the median distance to the nearest neighbour.
NEAR = 0.05
MAX_SAMPLES = 20_000


def exact_repeats(inputs: Tensor) -> list[tuple[int, int]]:
    """Return pairs of the first and every later sample with equal values, sorted."""
    first: dict[bytes, int] = {}
    values = inputs.detach().reshape(len(inputs), -1).cpu().add(0).contiguous()  # -0.0 becomes 0.0
    rows = values.view(torch.uint8).numpy()
    repeats = [(first.setdefault(row.tobytes(), i), i) for i, row in enumerate(rows)]
    return sorted(pair for pair in repeats if pair[0] != pair[1])


def _limit(distances: Tensor) -> float:
    positive = distances[distances > 1e-6]
    return max(NEAR * float(positive.median()) if len(positive) else 0.0, 1e-6)


def duplicate_pairs(samples: Samples) -> list[tuple[int, int]]:
    """Return sorted pairs (i, j), i < j, of nearest neighbours that are near-duplicates.

    Their Euclidean distance on standardized features is below 5 % of the median distance to the nearest neighbour.
    Beyond 20,000 samples, only exact repeats are found.
    """
    features = sample_features(samples) if len(samples) <= MAX_SAMPLES else torch.empty(0, 0)
    if not features.shape[1]:
        return exact_repeats(samples.inputs)
    distances, nearest = find_nearest(features)
    close = torch.nonzero(distances[:, 0] <= _limit(distances)).flatten().tolist()
    return sorted({(min(i, int(nearest[i])), max(i, int(nearest[i]))) for i in close})


def duplicates_in_test(samples: Samples, test: Samples) -> tuple[tuple[int, int], ...]:
    """Return pairs (i, j) of training samples i that test samples j repeat or nearly repeat."""
    if samples.inputs.shape[1:] != test.inputs.shape[1:]:
        got, needed = list(test.inputs.shape[1:]), list(samples.inputs.shape[1:])
        raise InvalidInput(f"Got test inputs of shape {got}; {needed} is needed. Pass the test set of the same data.")
    n, inputs = len(samples), torch.cat([samples.inputs.cpu(), test.inputs.cpu().to(samples.inputs.dtype)])
    both = Samples(inputs, form=samples.form)
    features = sample_features(both) if len(both) <= MAX_SAMPLES else torch.empty(0, 0)
    if not features.shape[1]:
        by_test_sample = sorted((j - n, i) for i, j in exact_repeats(inputs) if i < n <= j)
        return tuple((i, j) for j, i in by_test_sample)
    distances, nearest = find_nearest(features[n:], features[:n])
    close = distances[:, 0] <= _limit(find_nearest(features[:n])[0])
    return tuple((int(nearest[j]), j) for j in torch.nonzero(close).flatten().tolist())


def conflicting_duplicates(samples: Samples) -> tuple[tuple[int, int], ...]:
    """Return pairs of (near-)duplicates with different labels: one at least is an error."""
    targets = samples.targets
    if targets is None or not samples.is_classification:
        return ()
    return tuple((i, j) for i, j in duplicate_pairs(samples) if int(targets[i]) != int(targets[j]))
