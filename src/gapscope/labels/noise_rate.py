r"""Upper bound of the label noise rate, from margins of samples and of canaries.

Let F be the distribution of the margins of all samples and G that of label errors, measured at canaries: samples with a
deliberately corrupted label. A fraction r of the samples are errors, so $F(t) \ge r\, G(t)$ at every threshold t, and

$$r \le \varrho = \min_t F(t) / G(t),$$

with equality if clean labels have no margins below some t. A class label corrupted at random among C - 1 others may be
the true label of an error, with probability r / (C - 1). Canaries then have the distribution
$(1 - r / (C - 1))\, G$ below t, so that $\varrho = r / (1 - r / (C - 1))$, or $r = \varrho / (1 + \varrho / (C - 1))$.

**Regression.** A gross error would pull the predictions of its neighbours towards it. The kernel machine is therefore
fitted to targets with clipped leave-one-out residuals, $\tilde y = f + \mathrm{clip}(y - f, \pm 2 s)$ with their robust
spread s, in a few rounds (pseudo-values of Huber's estimate; Huber and Ronchetti 2009, section 7.8). Canaries get the
target of another sample: the bound counts targets that are wrong by as much as that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gapscope.statistics.baselines import RIDGES
from gapscope.statistics.intervals import power_of_two
from gapscope.statistics.kernel_ridge import Spectrum, loo_predictions, select_ridge

# of 5 % of the samples each: once per sample on average
ROUNDS = 20
# Fraction of labels corrupted per round: with more of them the fit would differ from that of the original labels.
CANARY_FRACTION, MIN_CANARIES = 0.05, 12


@dataclass(frozen=True)
class CanaryMargins:
    """Margins of samples with original and with corrupted labels, in r rounds."""

    ordinary: Float[Tensor, "r k"]
    canaries: Float[Tensor, "r m"]


def margins_of(scores: Float[Tensor, "n c"], labels: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Return the score of each label less the largest other score.

    >>> margins_of(torch.tensor([[2.0, 5.0, 1.0]]), torch.tensor([0])).item()
    -3.0
    """
    label_scores = scores.gather(1, labels[:, None]).squeeze(1)
    return label_scores - scores.scatter(1, labels[:, None], -torch.inf).amax(1)


def smallest_ratio(
    margins: Float[Tensor, " n"], canaries: Float[Tensor, " m"], quantile: float
) -> tuple[float, float]:
    r"""Return $\varrho$ and the threshold t of the minimum, over the canaries above `quantile`."""
    # G grows at the canaries' margins only, so the minimum is at one of them; few canaries make a noisy ratio
    ordered = canaries.sort().values
    thresholds = ordered[int(quantile * (len(ordered) - 1)) :]
    below = torch.searchsorted(margins.sort().values, thresholds, right=True).double() / len(
        margins
    )
    canaries_below = torch.searchsorted(ordered, thresholds, right=True).double() / len(ordered)
    ratio, index = (below / canaries_below).min(0)
    return float(ratio), float(thresholds[index])


def noise_rate_bound(
    margins: Float[Tensor, " n"],
    canaries: Float[Tensor, " m"],
    n_classes: int | None = None,
    *,
    quantile: float = 0.5,
) -> float:
    r"""Return an upper bound of the noise rate, with a relative error of order $1 / \sqrt m$.

    `n_classes` is None if no canary can get a true label; the bound is then $\varrho$ itself.

    >>> right, wrong = torch.ones(80), -torch.ones(20)
    >>> round(noise_rate_bound(torch.cat([right, wrong]), -torch.ones(30)), 6)
    0.2
    """
    ratio, _ = smallest_ratio(margins, canaries, quantile)
    return min(ratio if n_classes is None else ratio / (1 + ratio / (n_classes - 1)), 1.0)


def noise_rate_interval(
    margins: CanaryMargins, n_classes: int | None, *, quantile: float, generator: torch.Generator
) -> tuple[float, float, float]:
    """Return the bound of all rounds and its 90 % bootstrap interval (rate, low, high)."""
    ordinary = margins.ordinary
    canaries = margins.canaries.flatten()
    rates = []
    rate = noise_rate_bound(ordinary.flatten(), canaries, n_classes, quantile=quantile)
    # ends of a 90 % interval are then the tenth smallest and largest
    for _ in range(200):
        # all rounds use the same samples, so a resample has the size of one round
        number = int(torch.randint(len(ordinary), (), generator=generator))
        rows = torch.randint(ordinary.shape[1], (ordinary.shape[1],), generator=generator)
        columns = torch.randint(len(canaries), (len(canaries),), generator=generator)
        rates.append(
            noise_rate_bound(
                ordinary[number][rows], canaries[columns], n_classes, quantile=quantile
            )
        )
    q05, q95 = torch.tensor(rates).quantile(torch.tensor([0.05, 0.95])).tolist()
    # The minimum of noisy ratios is biased downwards; the bound is biased upwards where margins of clean labels and
    # errors overlap. Each end is therefore the wider one of the percentile and the basic bootstrap.
    low = min(q05, 2 * rate - q95, rate)
    high = max(q95, 2 * rate - q05, rate)
    return rate, max(low, 0.0), min(high, 1.0)


def clean_accuracy(accuracy: float, rate: float, n_classes: float) -> float:
    r"""Return the accuracy A on clean labels from that on noisy ones.

    A correct prediction agrees with a noisy label with probability 1 - r, a wrong one with probability r / (C - 1) for
    errors spread evenly: $A_{noisy} = (1 - r) A + (1 - A)\, r / (C - 1)$, solved for A.
    """
    return (accuracy - rate / (n_classes - 1)) / max(1 - rate * n_classes / (n_classes - 1), 1e-12)


def corrupt_in_rounds(
    n: int, device: torch.device, margins: Callable[[Tensor], Tensor], generator: torch.Generator
) -> CanaryMargins:
    """Return margins in 20 rounds, each with corrupted labels at another 5 % of the samples."""
    n_canaries = max(MIN_CANARIES, round(CANARY_FRACTION * n))
    ordinary = []
    canaries = []
    for _ in range(ROUNDS):
        parts = torch.randperm(n, generator=generator).split([n_canaries, n - n_canaries])
        at_canaries, rest = (part.to(device) for part in parts)
        values = margins(at_canaries)
        ordinary.append(values[rest])
        canaries.append(values[at_canaries])
    return CanaryMargins(torch.stack(ordinary).cpu(), torch.stack(canaries).cpu())


# robust standard deviations, of residuals and of targets, by judgment
CLIP, FIRST_CLIP = 2.0, 3.0


def robust_spread(values: Float[Tensor, "n k"]) -> Float[Tensor, " k"]:
    """Return the scaled median absolute deviation per column (the standard deviation if 0)."""
    # 1.4826 is the ratio of standard deviation and median absolute deviation of a normal distribution
    deviation = 1.4826 * (values - values.median(0).values).abs().median(0).values
    return torch.where(deviation > 0, deviation, values.std(0, correction=0)).clamp_min(1e-12)


def unit_of(targets: Float[Tensor, "n k"]) -> float:
    """Return a power of two of the order of the spread of most targets, the unit in which `robust_spread` is limited.

    Args:
        targets: Targets on any scale.
    """
    targets = targets.double()
    deviation = float((targets - targets.median(0).values).abs().median())
    return power_of_two(deviation or float(targets.std(correction=0)))


def fit_robustly(
    spectrum: Spectrum, targets: Float[Tensor, "n k"]
) -> tuple[Float[Tensor, "n k"], float, Float[Tensor, "n k"]]:
    """Return targets with clipped residuals, the ridge, and leave-one-out predictions."""
    unit = unit_of(targets)
    targets = targets / unit
    median = targets.median(0).values
    spread = robust_spread(targets)
    clipped = median + (targets - median).clamp(-FIRST_CLIP * spread, FIRST_CLIP * spread)
    # four rounds of clipping, by judgment
    for _ in range(4):
        _, loo = select_ridge(spectrum, clipped, RIDGES)
        residuals = targets - loo.predictions
        limit = CLIP * robust_spread(residuals)
        clipped = loo.predictions + residuals.clamp(-limit, limit)
    ridge, loo = select_ridge(spectrum, clipped, RIDGES)
    return clipped * unit, ridge, loo.predictions * unit


def residual_margins(
    residuals: Float[Tensor, "n k"], spread: Float[Tensor, " k"]
) -> Float[Tensor, " n"]:
    r"""Return $-\lVert r_i / s \rVert$: small for targets far from their predictions."""
    return -(residuals / spread).norm(dim=1)


def regression_canaries(
    spectrum: Spectrum | None,
    targets: Float[Tensor, "n k"],
    clipped: Float[Tensor, "n k"],
    ridge: float,
    predictions: Float[Tensor, "n k"],
    generator: torch.Generator,
) -> CanaryMargins:
    """Return margins in 20 rounds, each with targets exchanged at another 5 % of the samples.

    Without a spectrum, predictions stay as they are: they are of a model that saw other samples.
    """
    n = len(targets)
    spread = robust_spread(targets - predictions)

    def margins(at_canaries: Tensor) -> Tensor:
        corrupted = targets.clone()
        fitted = clipped.clone()
        corrupted[at_canaries] = targets[
            torch.randint(n, (len(at_canaries),), generator=generator).to(targets.device)
        ]
        if spectrum is None:
            return residual_margins(corrupted - predictions, spread)
        residuals = corrupted[at_canaries] - predictions[at_canaries]
        fitted[at_canaries] = predictions[at_canaries] + residuals.clamp(
            -CLIP * spread, CLIP * spread
        )
        loo = loo_predictions(spectrum, fitted, ridge * (spectrum.mean or 1.0))
        return residual_margins(corrupted - loo.predictions, spread)

    return corrupt_in_rounds(n, targets.device, margins, generator)
