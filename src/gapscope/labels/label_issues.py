"""Label noise and label issues: before training, or from one monitored training run."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from jaxtyping import Int
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, NotMeasurable, check_range
from gapscope.base.random_streams import make_generator
from gapscope.base.samples import Samples, as_samples
from gapscope.inspection.estimators import unwrap_estimator
from gapscope.inspection.validation import ready
from gapscope.labels.duplicates import conflicting_duplicates, duplicates_in_test
from gapscope.labels.kernel_views import kernel_views
from gapscope.labels.loo_canaries import canary_margins
from gapscope.labels.monitored import MonitoredLabels, get_monitored_labels
from gapscope.labels.noise_interval import estimate_noise_interval
from gapscope.labels.noise_rate import margins_of, noise_rate_bound
from gapscope.labels.results import LabelIssues, LabelNoiseEstimate, rank_label_issues
from gapscope.measures.kernel_leave_one_out import RIDGES, kernel_columns
from gapscope.statistics.baselines import rbf_spectrum, sample_features, target_matrix
from gapscope.statistics.kernel_ridge import select_ridge

# of an automatic penalty strength, which relies on the rate
FEWEST_SAMPLES = 100
MIN_SAMPLES = 50
# the rate is the smallest ratio over the canaries' margins from here on
QUANTILE = 0.3
# the same for the expected precision of the flagged samples: unbiased there on average, where the rate is a little low
QUANTILE_OF_PRECISION = 0.5


@dataclass(frozen=True)
class LabelAssessment:
    """All that is known of some labels.

    Attributes:
        issues: The ranking.
        noise: The rate, whether it can be relied on or not.
    """

    issues: LabelIssues
    noise: LabelNoiseEstimate


def assess_before_training(
    network: nn.Module,
    data: Any,
    *,
    max_exact: int = 2000,
    landmarks: int = 1000,
    chunk_size: int | None = None,
    seed: int = 0,
) -> LabelAssessment:
    """Judge labels by left-out margins with the labels as given, and with canaries among them.

    Args:
        network: As for `label_noise`.
        data: As for `label_noise`.
        max_exact: As for `kernel_leave_one_out`.
        landmarks: As for `kernel_leave_one_out`.
        chunk_size: As for `empirical_ntk`.
        seed: As for `label_noise`.

    Returns:
        Ranking and noise.

    Raises:
        InvalidInput: There are no class labels, or fewer than 100 samples.
    """
    found = ready(network, as_samples(data))
    samples = found.samples
    if not samples.is_classification or samples.targets is None:
        raise InvalidInput("Got no class labels; label noise needs int64 labels of shape [n]. Pass data as (x, y).")
    if len(samples) < FEWEST_SAMPLES:
        raise InvalidInput(
            f"Got {len(samples)} samples; label noise needs at least {FEWEST_SAMPLES}. Pass more samples."
        )
    labels: Int[Tensor, " n"] = samples.targets.cpu()
    n_classes = max(found.n_outputs, int(labels.max()) + 1)
    kernel = kernel_columns(
        found.network, samples.inputs, max_exact, landmarks, make_generator(seed, "landmarks"), chunk_size
    ).spectrum()
    labels = labels.to(kernel.vectors.device)
    ridge, best = select_ridge(kernel, torch.nn.functional.one_hot(labels, n_classes).double(), RIDGES)
    predicted, margins = best.predictions.argmax(1), margins_of(best.predictions, labels)
    changed = canary_margins(kernel, labels, predicted, ridge, n_classes, make_generator(seed, "canaries"))
    noise = estimate_noise_interval(
        changed,
        float((predicted == labels).double().mean()),
        n_classes,
        samples=len(labels),
        quantile=QUANTILE,
        generator=make_generator(seed, "resampling"),
    )
    positions, canaries = torch.arange(len(labels)), changed.canaries.flatten()
    return LabelAssessment(
        rank_label_issues(positions, labels.cpu(), predicted.cpu(), margins.cpu(), canaries, noise), noise
    )


def _collect(source: Any, data: Any, features: Any, labels: Any) -> Samples:
    """The samples, from `data` or from features and labels."""
    if (features is None) != (labels is None):
        raise InvalidInput("features and labels belong together; got one of them. Pass both.")
    if features is not None and (data is not None or source is not None):
        raise InvalidInput("Got features as well as a network or data. Pass features and labels alone.")
    if features is not None:
        data = (features, labels)
    if data is None:
        raise InvalidInput("Got no training data; an untrained network, or None, needs them. Pass data as (x, y).")
    samples = as_samples(data)
    if samples.targets is None or samples.is_dense:
        what = "labels of positions" if samples.is_dense else "inputs alone"
        raise InvalidInput(f"Got {what}; one label (or regression target) per sample is needed. Pass data as (x, y).")
    if len(samples) < MIN_SAMPLES:
        raise InvalidInput(f"Got {len(samples)} samples; label issues need at least {MIN_SAMPLES}. Pass more samples.")
    if samples.is_classification and len(samples.targets.unique()) < 2:
        raise InvalidInput("Got labels of one class; two or more are needed. Pass samples of other classes too.")
    return samples


def _kernel_assessment(network: nn.Module | None, samples: Samples, seed: int, options: dict[str, Any]
                       ) -> LabelAssessment:  # fmt: skip
    """Assess class labels with the kernel machine of the smallest leave-one-out error."""
    views, n_classes, notes = kernel_views(network, samples, seed=seed, **options)
    if not views:
        raise InvalidInput("No input varies between the samples, so that no label can be checked. Pass other features.")
    best = views[0]
    labels = cast("Tensor", samples.targets).to(best.spectrum.vectors.device)
    scores = best.loo.predictions
    predicted, margins = scores.argmax(1), margins_of(scores, labels)
    changed = canary_margins(best.spectrum, labels, predicted, best.ridge, n_classes, make_generator(seed, "canaries"))
    accuracy = float((predicted == labels).double().mean())
    noise = estimate_noise_interval(
        changed, accuracy, n_classes, samples=len(labels), quantile=QUANTILE,
        generator=make_generator(seed, "resampling"),
    )  # fmt: skip
    fraction = noise_rate_bound(
        changed.ordinary.flatten(), changed.canaries.flatten(), n_classes, quantile=QUANTILE_OF_PRECISION
    )
    frequent = float(torch.bincount(labels).max()) / len(labels)
    noise = replace(noise, accuracy=accuracy, most_frequent=frequent).as_upper_bound()
    issues = rank_label_issues(
        torch.arange(len(labels)), labels.cpu(), predicted.cpu(), margins.cpu(), changed.canaries.flatten(), noise,
        probabilities=_probabilities(scores, predicted).cpu(), fraction=min(fraction, noise.high),
    )  # fmt: skip
    issues = replace(
        issues, method=best.method, samples=samples, conflicts=conflicting_duplicates(samples), notes=tuple(notes)
    )
    return LabelAssessment(issues, noise)


def _probabilities(scores: Tensor, predicted: Tensor) -> Tensor:
    """Leave-one-out ridge scores estimate class probabilities; clipped to [0, 1] and normalized."""
    clipped = scores.clamp(0, 1)
    return (clipped / clipped.sum(1, keepdim=True).clamp_min(1e-12)).gather(1, predicted[:, None]).squeeze(1)


def _target_issues(network: nn.Module | None, samples: Samples, seed: int, options: dict[str, Any]) -> LabelIssues:
    r"""Rank regression targets by $\lVert r_i \rVert / s$: leave-one-out residuals in units of their robust spread."""
    views, _, notes = kernel_views(network, samples, seed=seed, **options)
    if not views:
        raise InvalidInput(
            "No input varies between the samples, so that no target can be checked. Pass other features."
        )
    best, targets = views[0], cast("Tensor", samples.targets).double().cpu()
    residuals = targets - best.loo.predictions.cpu()
    spread = 1.4826 * (residuals - residuals.median(0).values).abs().median(0).values.clamp_min(1e-12)
    size = (residuals / spread).norm(dim=1)
    order = size.argsort(descending=True, stable=True)
    return LabelIssues(
        indices=order,
        given_labels=targets[order].squeeze(1),
        suggested_labels=best.loo.predictions.cpu()[order].squeeze(1),
        margin=-size[order],
        n_flagged=0,
        expected_precision=math.nan,
        noise=None,
        note="The rate of wrong targets is not estimated for regression; the ranking is by leave-one-out residual.",
        probability=torch.full((len(order),), math.nan, dtype=torch.float64),
        method=best.method,
        samples=samples,
        notes=tuple(notes),
    )


def _assess(source: Any, data: Any, features: Any, labels: Any, seed: int, options: dict[str, Any]) -> LabelAssessment:
    if source is None or isinstance(source, nn.Module):
        samples = _collect(source, data, features, labels)
        if not samples.is_classification:
            raise InvalidInput(
                "Got regression targets; the rate of label noise needs class labels. find_label_issues ranks targets."
            )
        return _kernel_assessment(source, samples, seed, options)
    if data is not None or features is not None:
        raise InvalidInput(
            f"Got data as well as a {type(source).__name__}, which has its data already. Pass the monitor alone, or an "
            "untrained network (or None) with its data."
        )
    monitored = get_monitored_labels(source)
    noise = monitored.noise(make_generator(seed, "resampling"))
    kernel = _kernel_margins(getattr(source, "monitor", source), monitored)
    return LabelAssessment(monitored.ranked(noise, kernel), noise)


def _kernel_margins(monitor: Any, monitored: MonitoredLabels) -> Tensor | None:
    """Leave-one-out margins by an RBF kernel of the labels that were trained on; None if these are not known."""
    samples = getattr(monitor, "samples", None)
    if not isinstance(samples, Samples) or samples.targets is None or len(samples) != len(monitored.given):
        return None
    trained, features = samples.targets.cpu(), sample_features(samples)
    if bool((trained == monitored.given)[monitored.is_canary].any()) or not features.shape[1]:
        return None  # the labels of the canaries are restored
    _, best = select_ridge(rbf_spectrum(features), target_matrix(trained, monitored.n_classes), RIDGES)
    return margins_of(best.predictions, trained)


def estimate_label_noise(
    source: nn.Module | Any = None,
    data: Any = None,
    *,
    features: Any = None,
    labels: Any = None,
    max_exact: int = 2000,
    landmarks: int = 1000,
    chunk_size: int | None = None,
    seed: int = 0,
) -> LabelNoiseEstimate:
    """Estimate the fraction of labels that are wrong: before training, or from one monitored training run.

    Before training, every sample is predicted from all others by a kernel machine, in closed form: an RBF kernel or a
    linear kernel of the inputs, and, with an untrained network, its last hidden features or its neural tangent kernel,
    whichever has the smallest leave-one-out error. The labels of 5 % of the samples are then corrupted, in 20 rounds;
    the rate follows from their margins (`gapscope.labels.noise_rate`). It is an upper bound that is tight where clean
    labels are predicted well. Where fewer than 85 % are, the lower end of the interval is 0, because a hard problem
    looks the same as label noise.

    From a monitored run, margins are means over its epochs and the corrupted samples are its canaries
    (`gapscope.labels.monitored`).

    Args:
        source: An untrained network, or None; or a `Monitor` that watched a run with canaries, its callback or its
            `CanaryAlarm`. Trained weights would know the labels that they check.
        data: Training data with class labels, in any form that `gapscope.measure` takes; None with a monitor.
        features: Embeddings [n, d] in place of a network and data.
        labels: Their labels; strings are accepted.
        max_exact: Number of samples up to which the NTK is exact.
        landmarks: Number of samples that approximate it beyond.
        chunk_size: Samples per pass; None for as many as memory allows.
        seed: Seed of the corrupted labels, the resampling and the landmarks.

    Returns:
        The rate with its 90 % interval.

    Raises:
        InvalidInput: There are no class labels, fewer than 50 samples, or no canaries in what was monitored.
        NotMeasurable: The labels cannot be predicted well enough to tell noise from a hard problem.

    >>> x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> estimate_label_noise(None, (x, y)).rate < 0.05
    True
    """
    options = {"max_exact": max_exact, "landmarks": landmarks, "chunk_size": chunk_size}
    source, data = unwrap_estimator(source, data)
    noise = _assess(source, data, features, labels, seed, options).noise
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
    max_exact: int = 2000,
    landmarks: int = 1000,
    chunk_size: int | None = None,
    seed: int = 0,
) -> LabelIssues:
    """Rank samples by how likely their label is wrong: before training, or from one monitored training run.

    Class labels are ranked by margin: the leave-one-out score of the given label less the largest other score, by the
    kernel machine that `estimate_label_noise` uses. Regression targets are ranked by their leave-one-out residual.

    From a monitored run, samples are ranked by the mean of two ranks: that of the margin averaged over its epochs, and
    that of the leave-one-out margin by an RBF kernel of the inputs (if the labels of the canaries are not restored).

    Flagged are as many of the first as are expected to be wrong, or, with `precision`, the longest list of which at
    least that fraction is expected to be wrong. Nothing is flagged where the rate cannot be estimated.

    Args:
        source: As for `estimate_label_noise`.
        data: As for `estimate_label_noise`; regression targets are accepted too.
        features: Embeddings [n, d] in place of a network and data.
        labels: Their labels; strings are accepted.
        precision: Expected fraction of errors among the flagged samples, in (0, 1].
        test: Test set; training samples that it (nearly) repeats are named in `test_duplicates`.
        max_exact: Number of samples up to which the NTK is exact.
        landmarks: Number of samples that approximate it beyond.
        chunk_size: Samples per pass; None for as many as memory allows.
        seed: As for `estimate_label_noise`.

    Returns:
        The ranking, the flagged samples, suggested labels and the rate.

    Raises:
        InvalidInput: There are no labels, fewer than 50 samples, or no canaries in what was monitored.

    >>> x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> y[17] = 1 - y[17]
    >>> 17 in find_label_issues(None, (x, y)).indices[:20]
    True
    """
    if precision is not None:
        check_range("precision", precision, 0, 1, low_open=True)
    options = {"max_exact": max_exact, "landmarks": landmarks, "chunk_size": chunk_size}
    source, data = unwrap_estimator(source, data)
    if source is None or isinstance(source, nn.Module):
        samples = _collect(source, data, features, labels)
        if samples.is_classification:
            issues = _kernel_assessment(source, samples, seed, options).issues
        else:
            issues = _target_issues(source, samples, seed, options)
        if test is not None:
            issues = replace(issues, test_duplicates=duplicates_in_test(samples, as_samples(test)))
    elif test is not None:
        raise InvalidInput("Got test data as well as a monitor; pass the test set with an untrained network or None.")
    else:
        issues = _assess(source, data, features, labels, seed, options).issues
    return issues if precision is None else issues.with_precision(precision)
