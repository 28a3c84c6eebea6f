r"""Upper bound and interval of the label noise rate, from samples whose label was corrupted on purpose (canaries).

A sample's margin is the score of its given label less the largest other score. If a fraction r of the labels is wrong
in the way that the canaries' are, then with F for distribution functions of margins

$$F_{all} = (1 - r) F_{right} + r F_{wrong} \ge r F_{wrong} .$$

If new labels are drawn without regard to the truth, about $r / (C - 1)$ of the canaries get their true label back:
$F_{canary} \le (1 - r / (C - 1)) F_{wrong} + \dots$, so that with $\varrho = \min_t F_{all}(t) / F_{canary}(t)$

$$r \le \frac{\varrho}{1 + \varrho / (C - 1)},$$

with equality where no clean label has a margin as small as those of label errors. The minimum is over those t below
which at least a given fraction of the canaries is; over smaller t it would follow the noise of few canaries.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

RESAMPLES = 200


@dataclass(frozen=True)
class CanaryMargins:
    """Margins under labels of which some were corrupted on purpose, in r rounds.

    Attributes:
        ordinary: Margins of the samples with the labels as given, [r, k].
        canaries: Margins of the corrupted samples, [r, m].
    """

    ordinary: Float[Tensor, "r k"]
    canaries: Float[Tensor, "r m"]


def margins_of(scores: Float[Tensor, "n c"], labels: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Return the score of each label less the largest other score.

    >>> margins_of(torch.tensor([[2.0, 5.0, 1.0]]), torch.tensor([0])).item()
    -3.0
    """
    given = scores.gather(1, labels[:, None]).squeeze(1)
    return given - scores.scatter(1, labels[:, None], -torch.inf).amax(1)


def smallest_ratio(margins: Float[Tensor, " n"], canaries: Float[Tensor, " m"], quantile: float) -> tuple[float, float]:
    r"""Return $\varrho$ and the margin t of the minimum.

    Args:
        margins: Margins of samples with the labels as given.
        canaries: Margins of the canaries.
        quantile: Fraction of the canaries that must be below t.
    """
    ordered = canaries.sort().values
    thresholds = ordered[int(quantile * (len(ordered) - 1)) :]
    below = torch.searchsorted(margins.sort().values, thresholds, right=True).double() / len(margins)
    canaries_below = torch.searchsorted(ordered, thresholds, right=True).double() / len(ordered)
    ratio, index = (below / canaries_below).min(0)
    return float(ratio), float(thresholds[index])


def noise_rate_bound(
    margins: Float[Tensor, " n"], canaries: Float[Tensor, " m"], n_classes: int | None = None, *, quantile: float = 0.5
) -> float:
    r"""Return an upper bound of the fraction of label errors.

    Args:
        margins: Margins of samples with the labels as given.
        canaries: Margins of the canaries.
        n_classes: Number of classes C; None returns $\varrho$ itself: no canary gets its true label back.
        quantile: Fraction of the canaries that must be below t.

    Returns:
        The bound in [0, 1]; estimated, with a relative error of the order of $1 / \sqrt m$.

    >>> right, wrong = torch.ones(80), -torch.ones(20)
    >>> round(noise_rate_bound(torch.cat([right, wrong]), -torch.ones(30)), 6)
    0.2
    """
    ratio, _ = smallest_ratio(margins, canaries, quantile)
    return min(ratio if n_classes is None else ratio / (1 + ratio / (n_classes - 1)), 1.0)


def noise_rate_interval(
    margins: CanaryMargins, n_classes: int | None, *, quantile: float, generator: torch.Generator
) -> tuple[float, float, float]:
    """Return the bound of all rounds together and its 90 % bootstrap interval: rate, low, high.

    All rounds use the same samples, so each resample has the size of one round. The minimum of noisy ratios is biased
    downwards, and a bound is biased upwards where the margins of clean and wrong labels overlap. So each end is the
    wider one of the percentile and the basic bootstrap.

    Args:
        margins: Margins of ordinary samples and of canaries.
        n_classes: As for `noise_rate_bound`.
        quantile: As for `noise_rate_bound`.
        generator: Draws the resamples.
    """
    ordinary, canaries, rates = margins.ordinary, margins.canaries.flatten(), []
    rate = noise_rate_bound(ordinary.flatten(), canaries, n_classes, quantile=quantile)
    for _ in range(RESAMPLES):
        number = int(torch.randint(len(ordinary), (), generator=generator))
        rows = torch.randint(ordinary.shape[1], (ordinary.shape[1],), generator=generator)
        columns = torch.randint(len(canaries), (len(canaries),), generator=generator)
        rates.append(noise_rate_bound(ordinary[number][rows], canaries[columns], n_classes, quantile=quantile))
    lowest, highest = torch.tensor(rates).quantile(torch.tensor([0.05, 0.95])).tolist()
    low, high = min(lowest, 2 * rate - highest, rate), max(highest, 2 * rate - lowest, rate)
    return rate, max(low, 0.0), min(high, 1.0)


def clean_accuracy(accuracy: float, rate: float, n_classes: float) -> float:
    r"""Return the accuracy on clean labels, from the accuracy on labels of which a fraction r is wrong at random.

    $A = (A_{noisy} - r / (C - 1)) / (1 - r C / (C - 1))$.

    >>> round(clean_accuracy(0.9 * 0.8 + 0.1 * 0.2 / 9, 0.2, 10), 6)
    0.9
    """
    others = n_classes - 1
    return (accuracy - rate / others) / max(1 - rate * n_classes / others, 1e-12)
