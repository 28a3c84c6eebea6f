"""Scores for unequal classes: balanced accuracy and area under the ROC curve."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

MIN_RATIO = 2.0
"""Classes are unequal if the largest has this many times the samples of the smallest."""


@dataclass(frozen=True)
class ClassScores:
    """Scores that weight all classes equally.

    Attributes:
        balanced_accuracy: Mean over the classes of the fraction of their samples that are predicted correctly.
        auc: Area under the ROC curve; with more than two classes the mean of one class against the rest.
        largest: Fraction of the samples in the largest class.
    """

    balanced_accuracy: float
    auc: float
    largest: float

    @classmethod
    def mean(cls, scores: list[ClassScores]) -> ClassScores:
        """Return the mean of several scores of the same labels."""
        n = len(scores)
        balanced, area = (sum(getattr(one, name) for one in scores) / n for name in ("balanced_accuracy", "auc"))
        return cls(balanced, area, scores[0].largest)


def are_unequal(labels: Int[Tensor, " n"]) -> bool:
    """Return whether the largest class has at least twice the samples of the smallest."""
    counts = labels.bincount()
    counts = counts[counts > 0]
    return len(counts) > 1 and bool(counts.max() >= MIN_RATIO * counts.min())


def _area(scores: Tensor, positive: Tensor) -> float:
    """Return the area under the ROC curve (ties count half)."""
    _, inverse, counts = scores.unique(return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0).double() - (counts - 1) / 2)[inverse]
    n = int(positive.sum())
    others = len(positive) - n
    return float((ranks[positive].sum() - n * (n + 1) / 2) / (n * others))


def class_scores(scores: Float[Tensor, "n c"], labels: Int[Tensor, " n"]) -> ClassScores:
    """Return balanced accuracy and area under the ROC curve.

    `scores` has one score per class; the largest is the prediction. Areas compare the scores of one class between
    samples: pass probabilities, not logits, of more than two classes. Classes without a sample do not count.

    >>> found = class_scores(torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3]]), torch.tensor([0, 0, 1]))
    >>> found.balanced_accuracy, found.auc
    (0.5, 0.5)
    """
    labels, scores = labels.cpu(), scores.detach().double().cpu()
    classes = labels.unique()
    correct = (scores.argmax(1) == labels).double()
    balanced = torch.stack([correct[labels == label].mean() for label in classes]).mean()
    one_against_rest = classes[1:] if len(classes) == 2 else classes
    if scores.shape[1] == 2:
        scores = torch.stack([scores[:, 0] - scores[:, 1], scores[:, 1] - scores[:, 0]], dim=1)
    areas = [_area(scores[:, int(label)], labels == label) for label in one_against_rest]
    return ClassScores(float(balanced), sum(areas) / len(areas), float(labels.bincount().max()) / len(labels))
