"""Label noise and label issues: before training, or from one monitored training run."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, NotMeasurable, check_range
from gapscope.base.random_streams import make_generator
from gapscope.base.samples import Samples, as_samples
from gapscope.inspection.validation import unwrap_estimator
from gapscope.labels.kernel_views import (
    KernelView,
    classification_view,
    conflicting_duplicates,
    duplicates_in_test,
    kernel_views,
)
from gapscope.labels.monitored import MonitoredLabels, get_monitored_labels
from gapscope.labels.noise_rate import (
    canary_margins,
    clean_accuracy,
    margins_of,
    noise_rate_bound,
    noise_rate_interval,
    regression_canaries,
    residual_margins,
    robust_spread,
    smallest_ratio,
)
from gapscope.labels.results import LabelIssues, LabelNoiseEstimate, rank_label_issues
from gapscope.statistics.baselines import rbf_spectrum, sample_features, target_matrix

MIN_SAMPLES = 50
# The rate is the smallest ratio over the canaries' margins from this quantile upwards.
QUANTILE = 0.3
# The same for the expected precision of the flagged samples, which is then unbiased on average.
QUANTILE_OF_PRECISION = 0.5

# the ranking, and the rate whether it is reliable or not
Assessment = tuple[LabelIssues, LabelNoiseEstimate]


def _collect(source: Any, data: Any, features: Any, labels: Any) -> Samples:
    """Return the samples, from `data` or from features and labels."""
    if (features is None) != (labels is None):
        raise InvalidInput("Got features without labels or labels without features. Pass both.")
    if features is not None and (data is not None or source is not None):
        raise InvalidInput("Got features as well as a network or data. Pass features and labels alone.")
    if features is not None:
        data = (features, labels)
    if data is None:
        raise InvalidInput("Got no training data; an untrained network, or None, needs them. Pass data as (x, y).")
    samples = as_samples(data)
    if samples.targets is None or samples.is_dense:
        got = "labels of positions" if samples.is_dense else "inputs alone"
        raise InvalidInput(f"Got {got}; one label (or regression target) per sample is needed. Pass data as (x, y).")
    if len(samples) < MIN_SAMPLES:
        raise InvalidInput(f"Got {len(samples)} samples; label issues need at least {MIN_SAMPLES}. Pass more samples.")
    if not samples.is_classification and samples.targets[0].numel() != 1:
        got = list(samples.targets.shape)
        raise InvalidInput(f"Got regression targets {got}; one target per sample is needed. Pass one column at a time.")
    if samples.is_classification and len(samples.targets.unique()) < 2:
        raise InvalidInput("Got labels of one class; two or more are needed. Pass samples of other classes too.")
    return samples


def assess_labels(view: KernelView, labels: Tensor, n_classes: int, seed: int) -> Assessment:
    """Rank class labels [n] and estimate their noise, from margins of samples and canaries."""
    labels, scores = labels.to(view.spectrum.device), view.predictions
    predicted, margins = scores.argmax(1), margins_of(scores, labels)
    corrupted = canary_margins(
        view.spectrum, labels, predicted, view.ridge, n_classes, make_generator(seed, "canaries")
    )
    rate, low, high = noise_rate_interval(
        corrupted, None, quantile=QUANTILE, generator=make_generator(seed, "resampling")
    )
    canaries = corrupted.canaries.flatten()
    fraction = noise_rate_bound(corrupted.ordinary.flatten(), canaries, quantile=QUANTILE_OF_PRECISION)
    accuracy = float((predicted == labels).double().mean())
    noise = LabelNoiseEstimate(
        rate, low, high, min(clean_accuracy(accuracy, rate, n_classes), 1.0), len(labels),
        accuracy=accuracy, most_frequent=float(torch.bincount(labels).max()) / len(labels),
    ).bounded_if_hard()  # fmt: skip
    clipped = scores.clamp(0, 1)
    probabilities = clipped / clipped.sum(1, keepdim=True).clamp_min(1e-12)
    issues = rank_label_issues(
        torch.arange(len(labels)), labels.cpu(), predicted.cpu(), margins.cpu(), canaries, noise,
        probabilities=probabilities.gather(1, predicted[:, None]).squeeze(1).cpu(), fraction=min(fraction, noise.high),
    )  # fmt: skip
    return replace(issues, method=view.method), noise


def _assess_targets(view: KernelView, targets: Tensor, seed: int) -> Assessment:
    """Assess regression targets [n, k] by leave-one-out residuals, compared with canaries."""
    targets, predictions = targets.double().to(view.targets.device), view.predictions
    residuals = targets - predictions
    spread = robust_spread(residuals)
    margins = residual_margins(residuals, spread).cpu()
    generator = make_generator(seed, "canaries")
    corrupted = regression_canaries(view.spectrum, targets, view.targets, view.ridge, predictions, generator)
    rate, low, high = noise_rate_interval(
        corrupted, None, quantile=QUANTILE, generator=make_generator(seed, "resampling")
    )
    r_squared = 1 - float((spread / robust_spread(targets)).square().mean())
    noise = LabelNoiseEstimate(
        rate, 0.0, high, math.nan, len(targets), is_upper_bound=True, width=high - low, r_squared=r_squared
    )
    issues = rank_label_issues(
        torch.arange(len(targets)), targets.squeeze(1).cpu(), predictions.squeeze(1).cpu(), margins,
        corrupted.canaries.flatten(), noise, fraction=rate,
    )  # fmt: skip
    # below the threshold of the bound, the fraction of wrong targets is largest
    _, threshold = smallest_ratio(corrupted.ordinary.flatten(), corrupted.canaries.flatten(), QUANTILE)
    n_flagged = 0 if noise.unreliable_because else int((margins <= threshold).sum())
    return replace(issues, n_flagged=n_flagged, expected_precision=math.nan, method=view.method), noise


def _assess_data(network: nn.Module | None, samples: Samples, seed: int) -> Assessment:
    """Assess labels or targets with the kernel machine of the smallest leave-one-out error."""
    views, n_outputs, notes = kernel_views(network, samples, seed=seed)
    if not views:
        raise InvalidInput("No input varies between the samples, so no label can be checked. Pass other features.")
    targets = cast("Tensor", samples.targets)
    if samples.is_classification:
        issues, noise = assess_labels(views[0], targets, n_outputs, seed)
    else:
        issues, noise = _assess_targets(views[0], targets, seed)
    conflicts = conflicting_duplicates(samples)
    return replace(issues, samples=samples, conflicts=conflicts, notes=tuple(notes)), noise


def _assess_run(source: Any, seed: int) -> Assessment:
    """Assess the labels of a monitored run, and an RBF kernel of the inputs if known."""
    monitored = get_monitored_labels(source)
    noise = monitored.noise(make_generator(seed, "resampling"))
    samples = _trained_samples(getattr(source, "monitor", source), monitored)
    if samples is None:
        return monitored.rank(noise), noise
    labels, n_classes = cast("Tensor", samples.targets), monitored.n_classes

    def rbf_view(samples: Samples, labels: Tensor) -> KernelView:
        kernel = rbf_spectrum(sample_features(samples))
        return classification_view("RBF ridge", kernel, target_matrix(labels, n_classes))

    kernel_margins = margins_of(rbf_view(samples, labels).predictions, labels)
    # The rate is that of the machine that predicts more unseen labels. The run alone does not suffice: it has few
    # canaries, and if its rate is far too high, `clean_accuracy` makes a hard problem appear easy.
    ordinary = ~monitored.is_canary
    without_canaries, labels = samples.subset(torch.nonzero(ordinary).flatten()), labels[ordinary]
    _, kernel_noise = assess_labels(rbf_view(without_canaries, labels), labels, n_classes, seed)
    if kernel_noise.accuracy >= noise.accuracy:
        noise = kernel_noise
    else:
        noise = noise.bounded_if_hard(hard=kernel_noise.is_upper_bound)
    return monitored.rank(noise, kernel_margins), noise


def _trained_samples(monitor: Any, monitored: MonitoredLabels) -> Samples | None:
    """Return the monitored samples with the labels trained on (None if unknown)."""
    samples = getattr(monitor, "samples", None)
    if not isinstance(samples, Samples) or samples.targets is None or len(samples) != len(monitored.given_labels):
        return None
    is_restored = bool((samples.targets.cpu() == monitored.given_labels)[monitored.is_canary].any())
    if is_restored or not sample_features(samples).shape[1]:
        return None
    return Samples(samples.inputs.cpu(), samples.targets.cpu(), form=samples.form)


def _assess(source: Any, data: Any, features: Any, labels: Any, seed: int) -> Assessment:
    if source is None or isinstance(source, nn.Module):
        return _assess_data(source, _collect(source, data, features, labels), seed)
    if data is not None or features is not None:
        raise InvalidInput(
            f"Got data as well as a {type(source).__name__}, which has its data. Pass the monitor alone, or an "
            "untrained network (or None) with data."
        )
    return _assess_run(source, seed)


def estimate_label_noise(
    source: nn.Module | Any = None,
    data: Any = None,
    *,
    features: Any = None,
    labels: Any = None,
    seed: int = 0,
) -> LabelNoiseEstimate:
    """Estimate the label noise rate: before training, or from one monitored training run.

    Before training, a kernel machine predicts every sample from all others, in closed form. Its kernel is the one with
    the smallest leave-one-out error: RBF or linear in the inputs, or, with an untrained network, that of its last
    hidden features or the NTK. The labels of 5 % of the samples are then corrupted, in 20 rounds; the rate follows from
    their margins (`gapscope.labels.noise_rate`). It is an upper bound that is tight if clean labels are predicted well.
    If fewer than 85 % are, the lower end of the interval is 0, because a hard problem looks the same as label noise.

    For regression targets, a robust fit is used, and the rate is always an upper bound: of targets that are as wrong as
    the target of another sample.

    For a monitored run, margins are means over its epochs, and the corrupted samples are its canaries. If an RBF kernel
    of the inputs predicts more unseen labels than the network, the rate is that of the kernel.

    Raises:
        NotMeasurable: The labels cannot be predicted well enough to distinguish label errors from a hard problem.

    >>> x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> estimate_label_noise(None, (x, y)).rate < 0.05
    True
    """
    source, data = unwrap_estimator(source, data)
    _, noise = _assess(source, data, features, labels, seed)
    if reason := noise.unreliable_because:
        raise NotMeasurable(reason)
    return noise


def find_label_issues(
    source: nn.Module | Any = None,
    data: Any = None,
    *,
    features: Any = None,
    labels: Any = None,
    precision: float | None = None,
    test: Any = None,
    seed: int = 0,
) -> LabelIssues:
    """Rank samples by how likely their label is an error: before training, or from one run.

    Class labels are ranked by the leave-one-out score of the label less the largest other score, of the kernel machine
    that `estimate_label_noise` uses. Regression targets are ranked by their leave-one-out residual.

    For a monitored run, samples are ranked by the mean of two ranks: that of the margin averaged over its epochs, and
    that of the leave-one-out margin of an RBF kernel of the inputs (unless the canaries' labels are restored).

    As many samples are flagged as are expected to be wrong, or, with `precision`, the longest list of which at least
    that fraction is expected to be wrong. Regression targets are flagged if swapped targets often have residuals as
    large, and correct ones rarely. Nothing is flagged if the rate cannot be estimated.

    Args:
        precision: Expected fraction of errors among the flagged samples, in (0, 1].
        test: Test set; its (near-)duplicates of training samples are listed in `test_duplicates`.

    Raises:
        InvalidInput: There are no labels, fewer than 50 samples, or no canaries among the monitored samples.

    >>> x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> y[17] = 1 - y[17]
    >>> 17 in find_label_issues(None, (x, y)).indices[:20]
    True
    """
    if precision is not None:
        check_range("precision", precision, 0, 1, low_open=True)
    source, data = unwrap_estimator(source, data)
    issues, _ = _assess(source, data, features, labels, seed)
    if test is not None:
        if issues.samples is None:
            raise InvalidInput("Got test data as well as a monitor. Pass test= with an untrained network or None.")
        issues = replace(issues, test_duplicates=duplicates_in_test(issues.samples, as_samples(test)))
    return issues if precision is None else issues.with_precision(precision)
