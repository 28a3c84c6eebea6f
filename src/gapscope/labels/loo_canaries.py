"""Canaries without training: labels are corrupted in the closed form of a kernel machine, in several rounds."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from gapscope.labels.noise_rate import CanaryMargins, margins_of
from gapscope.statistics.kernel_ridge import Spectrum, loo_predictions

ROUNDS = 20
# Fraction of the labels that are corrupted per round: with more, the fit would differ from that of the given labels.
CANARY_FRACTION, MIN_CANARIES = 0.05, 12
# Added to the counts of confusions, so that classes are never without a wrong label. With 1, many canaries of a data
# set whose classes are confused in pairs would get labels that no error has.
PSEUDO_COUNT = 0.1


def confusion_odds(predicted: Int[Tensor, " n"], labels: Int[Tensor, " n"], n_classes: int) -> Tensor:
    """Return the number of samples predicted as class j and labelled k, plus 0.1: odds [C, C] of a wrong label of j.

    Args:
        predicted: Leave-one-out predictions.
        labels: Labels as given.
        n_classes: Number of classes.

    Returns:
        Odds, not normalized, 0 on the diagonal. With them, canaries are confused as the errors in the data are: among
        all classes, or between two.
    """
    odds = torch.full((n_classes, n_classes), PSEUDO_COUNT, dtype=torch.float64)
    odds.index_put_((predicted.cpu(), labels.cpu()), torch.ones(len(labels), dtype=torch.float64), accumulate=True)
    return odds.fill_diagonal_(0.0)


def canary_margins(
    kernel: Spectrum,
    labels: Int[Tensor, " n"],
    predicted: Int[Tensor, " n"],
    ridge: float,
    n_classes: int,
    generator: torch.Generator,
) -> CanaryMargins:
    """Return margins by predictions from all others, with corrupted labels of some samples; new samples per round.

    New labels are drawn from the odds of the predicted class, so that a canary's label is wrong also where its given
    label was. A round costs two products with the vectors of the kernel.

    Args:
        kernel: Spectrum of the kernel.
        labels: Labels as given.
        predicted: Leave-one-out predictions with these.
        ridge: Ridge, in units of the mean eigenvalue.
        n_classes: Number of classes.
        generator: Draws the canaries and their labels.
    """
    n, odds = len(labels), confusion_odds(predicted, labels, n_classes)
    number = max(MIN_CANARIES, round(CANARY_FRACTION * n))
    ordinary, canaries = [], []
    for _ in range(ROUNDS):
        order = torch.randperm(n, generator=generator)
        chosen, rest = (part.to(labels.device) for part in order.split([number, n - number]))
        corrupted = labels.clone()
        new_labels = torch.multinomial(odds[predicted[chosen].cpu()], 1, generator=generator).squeeze(1)
        corrupted[chosen] = new_labels.to(labels)
        targets = torch.nn.functional.one_hot(corrupted, n_classes).double()
        margins = margins_of(loo_predictions(kernel, targets, ridge * (kernel.mean or 1.0)).predictions, corrupted)
        ordinary.append(margins[rest])
        canaries.append(margins[chosen])
    return CanaryMargins(torch.stack(ordinary).cpu(), torch.stack(canaries).cpu())
