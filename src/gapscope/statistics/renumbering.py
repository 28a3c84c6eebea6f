"""Class numbers, or columns of labels, that mean other classes in one list of labels than in the predictions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from scipy.optimize import linear_sum_assignment  # pyright: ignore[reportUnknownVariableType]
from scipy.stats import binom
from torch import Tensor

Marks = Bool[Tensor, "n c"]
# By how much labels correlate more with another class than with their own, and than they should: by judgment.
MIN_MORE = 0.25
# Probability of a renumbering that chance alone explains, for all of them together.
LEVEL = 0.001


@dataclass(frozen=True)
class Renumbering:
    """Classes whose given numbers are read as others.

    Attributes:
        read_as: The predicted class of each given class that has another number.
        before: Fraction of the labels that are predicted as given.
        after: Fraction that is predicted with the numbers read as others.
    """

    read_as: dict[int, int]
    before: float
    after: float


def class_marks(classes: Tensor, n_classes: int) -> Marks:
    """Return which class each sample has [n, C].

    Args:
        classes: Numbers of classes [n].
        n_classes: Number of classes C.
    """
    return torch.nn.functional.one_hot(classes, n_classes).bool()


def mark_correlations(predicted: Marks, given: Marks) -> Float[Tensor, "c c"]:
    """Return the correlation of every predicted with every given class; 0 for one that does not vary.

    Args:
        predicted: Which classes are predicted.
        given: Which classes are given.
    """
    centred = [part.double() - part.double().mean(0) for part in (predicted, given)]
    scales = [part.norm(dim=0).clamp_min(1e-12) for part in centred]
    return (centred[0] / scales[0]).T @ (centred[1] / scales[1])


def find_renumbering(
    predicted: Marks, given: Marks, usual: Float[Tensor, "c c"] | float = 0.0
) -> Renumbering | None:
    """Return the renumbering of the given classes that fits the predictions, None if chance may explain it.

    Each renumbered class correlates more with another predicted class than with its own, and the labels that are right
    with the new numbers alone are significantly more (sign test over samples) than those that are with the given ones,
    also for all choices of so many classes and orders of them together.

    Args:
        predicted: Which classes are predicted, one or several per sample.
        given: Which classes are given.
        usual: Correlations of predictions and labels where the numbers agree, which are no renumbering.
    """
    found = mark_correlations(predicted, given)
    n_classes = len(found)
    # of equal ones the given numbers
    ties = 1e-9 * torch.eye(n_classes, dtype=found.dtype)
    rows, columns = linear_sum_assignment((found + ties).numpy(), maximize=True)
    more = found - torch.maximum(found.diagonal().expand_as(found), torch.as_tensor(usual))
    read_as = {
        int(column): int(row)
        for row, column in zip(rows, columns, strict=True)
        if row != column and more[row, column] >= MIN_MORE
    }
    if not read_as:
        return None
    order = torch.arange(n_classes)
    order[list(read_as)] = torch.tensor(list(read_as.values()))
    is_one = bool((given.sum(1) == 1).all()) and bool((predicted.sum(1) == 1).all())
    scores: list[Tensor] = []
    for columns in (torch.arange(n_classes), order):
        if is_one:
            right = predicted.gather(1, columns[given.long().argmax(1), None])
        else:
            right = predicted[:, columns] == given
        scores.append(right.double().mean(1))
    better = int((scores[1] > scores[0]).sum())
    worse = int((scores[1] < scores[0]).sum())
    choices = math.lgamma(n_classes + 1) - math.lgamma(n_classes - len(read_as) + 1)
    if binom.logsf(better - 1, better + worse, 0.5) > math.log(LEVEL / n_classes) - choices:
        return None
    before, after = (float(score.mean()) for score in scores)
    return Renumbering(read_as, before, after)
