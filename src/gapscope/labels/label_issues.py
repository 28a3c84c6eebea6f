"""How many labels are wrong, and which: before training or from one training, the front doors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, NotMeasurable
from gapscope.base.random_streams import make_generator
from gapscope.base.samples import as_samples
from gapscope.statistics.kernel_ridge import select_ridge
from gapscope.inspection.validation import ready
from gapscope.labels.loo_canaries import canary_margins
from gapscope.labels.monitored import get_monitored_labels
from gapscope.labels.noise_interval import estimate_noise_interval
from gapscope.labels.noise_rate import margins_of
from gapscope.labels.results import RECALL, LabelIssues, LabelNoiseEstimate, rank_label_issues
from gapscope.measures.kernel_leave_one_out import RIDGES, kernel_columns

FEWEST_SAMPLES = 100
# the rate is the smallest ratio over the canaries' margins from here on
QUANTILE = 0.3


@dataclass(frozen=True)
class LabelAssessment:
    """All that is known of some labels.

    Attributes:
        suspects: The ranking.
        noise: How many are wrong, whether it can be believed or not.
    """

    suspects: LabelIssues
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
        raise InvalidInput("Wrong labels need class labels, int64 targets [n]. Pass data as (x, y).")
    if len(samples) < FEWEST_SAMPLES:
        raise InvalidInput(f"Wrong labels need {FEWEST_SAMPLES} samples or more; got {len(samples)}. Pass more.")
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
    cut = float(changed.canaries.flatten().quantile(RECALL))
    positions = torch.arange(len(labels))
    return LabelAssessment(
        rank_label_issues(positions, labels.cpu(), predicted.cpu(), margins.cpu(), cut, noise), noise
    )


def _assess(
    source: Any, data: Any, max_exact: int, landmarks: int, chunk_size: int | None, seed: int
) -> LabelAssessment:
    if isinstance(source, nn.Module):
        if data is None:
            raise InvalidInput("Wrong labels need the training data of the untrained network. Pass data as (x, y).")
        return assess_before_training(
            source, data, max_exact=max_exact, landmarks=landmarks, chunk_size=chunk_size, seed=seed
        )
    if data is not None:
        raise InvalidInput(
            f"A training that was watched has its data already; got data beside {type(source).__name__}. Pass the "
            "monitor alone, or an untrained network with its data."
        )
    watched = get_monitored_labels(source)
    noise = watched.noise(make_generator(seed, "resampling"))
    return LabelAssessment(watched.ranked(noise), noise)


def estimate_label_noise(
    source: nn.Module | Any,
    data: Any = None,
    *,
    max_exact: int = 2000,
    landmarks: int = 1000,
    chunk_size: int | None = None,
    seed: int = 0,
) -> LabelNoiseEstimate:
    """Say how many labels are wrong: before training, or from one training.

    Before training every sample is predicted from all others by ridge regression on the gradients of the untrained
    network (`gs.functional.kernel_leave_one_out`), in closed form. The labels of 5 % are then made wrong on purpose, in 20 rounds,
    and the rate is that of `gapscope.labels.noise_rate` from their margins: an upper bound if wrong labels are wrong in
    the way these are, that is, drawn as the confusions of the left-out predictions suggest. No training.

    From a training the margins are means over its epochs, and the canaries those that it was given
    (`gapscope.labels.monitored`); their own labels are not judged.

    Args:
        source: The network with its initial weights (trained ones have learnt the labels they would judge), or a
            `Monitor` that watched a training with canaries, its callback or its `CanaryAlarm`.
        data: Training data with class labels, in any form that `gs.measure` takes, 100 samples or more; None with a
            monitor, which has them.
        max_exact: As for `kernel_leave_one_out`.
        landmarks: As for `kernel_leave_one_out`.
        chunk_size: As for `empirical_ntk`.
        seed: Seed of canaries, resampling and landmarks.

    Returns:
        The share with its interval.

    Raises:
        InvalidInput: There are no class labels, fewer than 100 samples, or no canaries in what was watched.
        NotMeasurable: Right labels are predicted from the others, or at the canaries, at less than 60 %: the network's
            own mistakes then look like wrong labels.

    >>> x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> label_noise(nn.Linear(2, 2), (x, y)).rate < 0.05
    True
    """
    noise = _assess(source, data, max_exact, landmarks, chunk_size, seed).noise
    if weak := noise.unreliable_because:
        raise NotMeasurable(weak)
    return noise


def find_label_issues(
    source: nn.Module | Any,
    data: Any = None,
    *,
    max_exact: int = 2000,
    landmarks: int = 1000,
    chunk_size: int | None = None,
    seed: int = 0,
) -> LabelIssues:
    """Rank samples by how much all others speak against their label: before training, or from one training.

    As for `label_noise`; the rank is by the margin of the given label. Flagged are the samples whose margin is no
    larger than that of 90 % of the canaries: of errors like these about 90 % are among them, and of those flagged a
    share of about `expected_precision` is wrong.

    Args:
        source: As for `label_noise`.
        data: As for `label_noise`.
        max_exact: As for `kernel_leave_one_out`.
        landmarks: As for `kernel_leave_one_out`.
        chunk_size: As for `empirical_ntk`.
        seed: As for `label_noise`.

    Returns:
        The ranking, the cut, and the noise; where the network is too weak to tell the noise, the ranking alone.

    Raises:
        InvalidInput: There are no class labels, fewer than 100 samples, or no canaries in what was watched.

    >>> x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> y[17] = 1 - y[17]
    >>> 17 in suspect_labels(nn.Linear(2, 2), (x, y)).order[:20]
    True
    """
    return _assess(source, data, max_exact, landmarks, chunk_size, seed).suspects
