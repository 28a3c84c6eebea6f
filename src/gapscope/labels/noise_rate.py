r"""Estimated rate of wrong labels, and of wrong regression targets.

Of regression targets: a gross error would pull the predictions of its neighbours towards it. So the kernel machine is
fitted to targets whose leave-one-out residuals are clipped, $\tilde y = f + \mathrm{clip}(y - f, \pm 2 s)$ with s their
robust spread, a few times over (pseudo-values of Huber's estimate; Huber and Ronchetti 2009, section 7.8). Its
residuals $y - f$ are those of the targets as given.

Canaries get the target of another sample. A target is wrong if it differs from the right one as much as that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gapscope.statistics.baselines import RIDGES
from gapscope.statistics.kernel_ridge import LooResult, Spectrum, loo_predictions, select_ridge

RESAMPLES = 200
ROUNDS = 20
# Fraction of the labels that are corrupted per round: with more, the fit would differ from that of the given labels.
CANARY_FRACTION, MIN_CANARIES = 0.05, 12
# Added to the counts of confusions, so that every class has possible label errors. With 1, many canaries of a data
# set whose classes are confused in pairs would get labels that no error has.
PSEUDO_COUNT = 0.1


@dataclass(frozen=True)
class CanaryMargins:
    """Margins of samples with given labels and with corrupted labels, in r rounds."""

    ordinary: Float[Tensor, "r k"]
    canaries: Float[Tensor, "r m"]


def margins_of(scores: Float[Tensor, "n c"], labels: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Return the score of each label less the largest other score.

    >>> margins_of(torch.tensor([[2.0, 5.0, 1.0]]), torch.tensor([0])).item()
    -3.0
    """
    chosen = scores.gather(1, labels[:, None]).squeeze(1)
    return chosen - scores.scatter(1, labels[:, None], -torch.inf).amax(1)


def smallest_ratio(margins: Float[Tensor, " n"], canaries: Float[Tensor, " m"], quantile: float) -> tuple[float, float]:
    r"""Return $\varrho$ and the margin t of the minimum."""
    ordered = canaries.sort().values
    thresholds = ordered[int(quantile * (len(ordered) - 1)) :]
    below = torch.searchsorted(margins.sort().values, thresholds, right=True).double() / len(margins)
    canaries_below = torch.searchsorted(ordered, thresholds, right=True).double() / len(ordered)
    ratio, index = (below / canaries_below).min(0)
    return float(ratio), float(thresholds[index])


def noise_rate_bound(
    margins: Float[Tensor, " n"], canaries: Float[Tensor, " m"], n_classes: int | None = None, *, quantile: float = 0.5
) -> float:
    r"""Return an upper bound of the fraction of label errors in [0, 1].

    Its relative error is of the order of $1 / \sqrt m$. Without `n_classes` it is $\varrho$ itself: no canary gets its
    true label back.

    >>> right, wrong = torch.ones(80), -torch.ones(20)
    >>> round(noise_rate_bound(torch.cat([right, wrong]), -torch.ones(30)), 6)
    0.2
    """
    ratio, _ = smallest_ratio(margins, canaries, quantile)
    return min(ratio if n_classes is None else ratio / (1 + ratio / (n_classes - 1)), 1.0)


def noise_rate_interval(
    margins: CanaryMargins, n_classes: int | None, *, quantile: float, generator: torch.Generator
) -> tuple[float, float, float]:
    """Return the bound of all rounds and its 90 % bootstrap interval (rate, low, high).

    All rounds use the same samples, so each resample has the size of one round. The minimum of noisy ratios is biased
    downwards, and a bound is biased upwards where margins of clean labels and label errors overlap. So each end is the
    wider one of the percentile and the basic bootstrap.
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
    r"""Return the accuracy on clean labels from the accuracy on noisy ones.

    $A = (A_{noisy} - r / (C - 1)) / (1 - r C / (C - 1))$.

    >>> round(clean_accuracy(0.9 * 0.8 + 0.1 * 0.2 / 9, 0.2, 10), 6)
    0.9
    """
    others = n_classes - 1
    return (accuracy - rate / others) / max(1 - rate * n_classes / others, 1e-12)


def confusion_odds(predicted: Int[Tensor, " n"], labels: Int[Tensor, " n"], n_classes: int) -> Tensor:
    """Return the odds [C, C] of label errors: confusion counts plus 0.1, zero diagonal."""
    odds = torch.full((n_classes, n_classes), PSEUDO_COUNT, dtype=torch.float64)
    odds.index_put_((predicted.cpu(), labels.cpu()), torch.ones(len(labels), dtype=torch.float64), accumulate=True)
    return odds.fill_diagonal_(0.0)


def corrupt_in_rounds(
    n: int, device: torch.device, margins: Callable[[Tensor], Tensor], generator: torch.Generator
) -> CanaryMargins:
    """Return margins in 20 rounds, with corrupted labels of other 5 % of the samples."""
    number = max(MIN_CANARIES, round(CANARY_FRACTION * n))
    ordinary, canaries = [], []
    for _ in range(ROUNDS):
        chosen, rest = (part.to(device) for part in torch.randperm(n, generator=generator).split([number, n - number]))
        values = margins(chosen)
        ordinary.append(values[rest])
        canaries.append(values[chosen])
    return CanaryMargins(torch.stack(ordinary).cpu(), torch.stack(canaries).cpu())


def canary_margins(
    kernel: Spectrum,
    labels: Int[Tensor, " n"],
    predicted: Int[Tensor, " n"],
    ridge: float,
    n_classes: int,
    generator: torch.Generator,
) -> CanaryMargins:
    """Return LOO margins in 20 rounds, each with corrupted labels of other samples.

    `predicted` are the leave-one-out predictions with the labels as given, `ridge` is in units of the mean eigenvalue.
    New labels are sampled from the odds of the predicted class, so that a canary's label is an error also where its
    given label was. A round costs two products with the vectors of the kernel.
    """
    odds = confusion_odds(predicted, labels, n_classes)

    def margins(chosen: Tensor) -> Tensor:
        corrupted = labels.clone()
        new_labels = torch.multinomial(odds[predicted[chosen].cpu()], 1, generator=generator).squeeze(1)
        corrupted[chosen] = new_labels.to(labels)
        targets = torch.nn.functional.one_hot(corrupted, n_classes).double()
        return margins_of(loo_predictions(kernel, targets, ridge * (kernel.mean or 1.0)).predictions, corrupted)

    return corrupt_in_rounds(len(labels), labels.device, margins, generator)


REGRESSION_ROUNDS = 4
CLIP, FIRST_CLIP = 2.0, 3.0


def robust_spread(values: Float[Tensor, "n k"]) -> Float[Tensor, " k"]:
    """Return the scaled median absolute deviation per column (the standard deviation if 0)."""
    deviation = 1.4826 * (values - values.median(0).values).abs().median(0).values
    return torch.where(deviation > 0, deviation, values.std(0, correction=0)).clamp_min(1e-12)


@dataclass(frozen=True)
class RobustFit:
    """Kernel machine robust to gross errors: clipped targets, ridge and predictions."""

    targets: Float[Tensor, "n k"]
    ridge: float
    loo: LooResult


def fit_robustly(spectrum: Spectrum, targets: Float[Tensor, "n k"]) -> RobustFit:
    """Fit the targets, clip their leave-one-out residuals, and repeat."""
    median, spread = targets.median(0).values, robust_spread(targets)
    clipped = median + (targets - median).clamp(-FIRST_CLIP * spread, FIRST_CLIP * spread)
    for _ in range(REGRESSION_ROUNDS):
        _, loo = select_ridge(spectrum, clipped, RIDGES)
        residuals = targets - loo.predictions
        limit = CLIP * robust_spread(residuals)
        clipped = loo.predictions + residuals.clamp(-limit, limit)
    ridge, loo = select_ridge(spectrum, clipped, RIDGES)
    return RobustFit(clipped, ridge, loo)


def residual_margins(residuals: Float[Tensor, "n k"], spread: Float[Tensor, " k"]) -> Float[Tensor, " n"]:
    r"""Return $-\lVert r_i / s \rVert$: small for targets far from their predictions."""
    return -(residuals / spread).norm(dim=1)


def regression_canaries(
    spectrum: Spectrum, fit: RobustFit, targets: Float[Tensor, "n k"], generator: torch.Generator
) -> CanaryMargins:
    """Return margins under 20 rounds in which some samples get the targets of others."""
    n, spread = len(targets), robust_spread(targets - fit.loo.predictions)

    def margins(chosen: Tensor) -> Tensor:
        corrupted, fitted = targets.clone(), fit.targets.clone()
        corrupted[chosen] = targets[torch.randint(n, (len(chosen),), generator=generator).to(targets.device)]
        predictions = fit.loo.predictions[chosen]
        fitted[chosen] = predictions + (corrupted[chosen] - predictions).clamp(-CLIP * spread, CLIP * spread)
        loo = loo_predictions(spectrum, fitted, fit.ridge * (spectrum.mean or 1.0))
        return residual_margins(corrupted - loo.predictions, spread)

    return corrupt_in_rounds(n, targets.device, margins, generator)
