"""The fraction of wrong labels with its interval, from margins of ordinary samples and of canaries."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from gapscope.labels.noise_rate import clean_accuracy, noise_rate_bound
from gapscope.labels.results import LabelNoiseEstimate

RESAMPLED = 200


@dataclass(frozen=True)
class CanaryMargins:
    """Margins under labels of which some were made wrong on purpose, of all rounds together.

    Attributes:
        ordinary: Of samples whose label was left as given, [r, k], a row a round.
        canaries: Of those that were given another, [r, m].
    """

    ordinary: Float[Tensor, "r k"]
    canaries: Float[Tensor, "r m"]


def _interval(
    rate: float, margins: CanaryMargins, n_classes: int, quantile: float, generator: torch.Generator
) -> tuple[float, float]:
    """What the rate may be by resampled rates; rounds share their samples, of which one round's worth is drawn.

    The rate errs to both sides: it is the smallest of many noisy ratios, which lies too low (and a resampled one lower
    again, by about as much), and a bound, which lies too high where it is loose. So each end is the wider one of the
    resampled rates' quantiles and of these reflected at the rate (the percentile and the basic bootstrap).

    Returns:
        Lower and upper end.
    """
    ordinary, canaries, drawn = margins.ordinary, margins.canaries.flatten(), []
    for _ in range(RESAMPLED):
        number = int(torch.randint(len(ordinary), (), generator=generator))
        rows = torch.randint(ordinary.shape[1], (ordinary.shape[1],), generator=generator)
        columns = torch.randint(len(canaries), (len(canaries),), generator=generator)
        drawn.append(noise_rate_bound(ordinary[number][rows], canaries[columns], n_classes, quantile=quantile))
    lowest, highest = torch.tensor(drawn).quantile(torch.tensor([0.05, 0.95])).tolist()
    low, high = min(lowest, 2 * rate - highest, rate), max(highest, 2 * rate - lowest, rate)
    return max(low, 0.0), min(high, 1.0)


def estimate_noise_interval(
    margins: CanaryMargins,
    accuracy: float,
    n_classes: int,
    *,
    samples: int,
    quantile: float,
    generator: torch.Generator,
) -> LabelNoiseEstimate:
    """Bound the fraction of wrong labels, with an interval.

    Args:
        margins: Of ordinary samples and of canaries.
        accuracy: Fraction of given labels that are predicted by what has not seen them.
        n_classes: Number of classes.
        samples: Number of samples that the share is of.
        quantile: See `noise_rate_bound`.
        generator: Draws what is resampled.

    Returns:
        The noise; `LabelNoise.weakness` says whether it can be believed.
    """
    rate = min(
        noise_rate_bound(margins.ordinary.flatten(), margins.canaries.flatten(), n_classes, quantile=quantile), 1.0
    )
    low, high = _interval(rate, margins, n_classes, quantile, generator)
    clean = clean_accuracy(accuracy, rate, n_classes)
    return LabelNoiseEstimate(rate, low, high, min(clean, 1.0), samples)
