"""Canaries without a training: labels are changed in the closed form of a kernel machine, round after round."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from gapscope.labels.noise_interval import CanaryMargins
from gapscope.labels.noise_rate import margins_of
from gapscope.statistics.kernel_ridge import Spectrum, loo_predictions

ROUNDS = 20
# at most so many labels are changed in a round: the machine must stay the one that the given labels make
SHARE = 0.05
FEWEST = 12


def confusion_odds(predicted: Int[Tensor, " n"], labels: Int[Tensor, " n"], n_classes: int) -> Tensor:
    """How often samples that look like class j are labelled k, and once more: odds [C, C] of a wrong label of j.

    Args:
        predicted: Left-out predictions.
        labels: Labels as given.
        n_classes: Number of classes.

    Returns:
        Odds, not normalized, 0 on the diagonal. So canaries are like the errors: alike among all classes where these
        are, between two classes where they are confused.
    """
    odds = torch.ones(n_classes, n_classes, dtype=torch.float64)
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
    """Change the labels of some samples, predict each by all others, and do so again with others.

    Args:
        kernel: Spectrum of the kernel.
        labels: Labels as given.
        predicted: Left-out predictions with these.
        ridge: Ridge, in units of the mean eigenvalue.
        n_classes: Number of classes.
        generator: Draws canaries and their labels.

    Returns:
        Margins; a round costs two products with the kernel's vectors.
    """
    n, odds = len(labels), confusion_odds(predicted, labels, n_classes)
    number = max(FEWEST, round(SHARE * n))
    ordinary, canaries = [], []
    for _ in range(ROUNDS):
        order = torch.randperm(n, generator=generator)
        chosen, rest = (part.to(labels.device) for part in order.split([number, n - number]))
        changed = labels.clone()
        changed[chosen] = torch.multinomial(odds[labels[chosen].cpu()], 1, generator=generator).squeeze(1).to(labels)
        targets = torch.nn.functional.one_hot(changed, n_classes).double()
        margins = margins_of(loo_predictions(kernel, targets, ridge * (kernel.mean or 1.0)).predictions, changed)
        ordinary.append(margins[rest])
        canaries.append(margins[chosen])
    return CanaryMargins(torch.stack(ordinary).cpu(), torch.stack(canaries).cpu())
