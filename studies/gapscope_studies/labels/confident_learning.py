r"""Confident learning, the published method of cleanlab (Northcutt et al. 2021, arXiv:1911.00068), as a baseline.

From out-of-sample probabilities $\hat p$: the threshold of class j is the mean self-confidence of the samples labelled
j (eq. 2), the confident joint counts samples with label i whose probability of j reaches its threshold (eq. 1, ties by
the largest probability), calibrated to the label counts (eq. 3). Pruning by noise rate removes for each pair i, j the
$n \hat Q_{ij}$ samples with label i of the largest margin $\hat p_j - \hat p_i$ (section 3.2).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def self_confidence(labels: Ints, probabilities: Floats) -> Floats:
    """Probability of the given label."""
    return probabilities[np.arange(len(labels)), labels]


def normalized_margin(labels: Ints, probabilities: Floats) -> Floats:
    """Probability of the given label less the largest other one, mapped to [0, 1]."""
    rest = probabilities.copy()
    rest[np.arange(len(labels)), labels] = -np.inf
    return (self_confidence(labels, probabilities) - rest.max(1) + 1) / 2


def confident_classes(labels: Ints, probabilities: Floats) -> Ints:
    """The class that each sample confidently belongs to; -1 if it reaches no threshold (eq. 2; none of absent ones)."""
    classes = range(probabilities.shape[1])
    means = [probabilities[labels == j, j].mean() if (labels == j).any() else np.inf for j in classes]
    reached = probabilities >= np.array(means) - 1e-6
    best = np.where(reached, probabilities, -np.inf).argmax(1)
    return np.where(reached.any(1), best, -1)


def confident_joint(labels: Ints, probabilities: Floats) -> Floats:
    """Calibrated counts [i, j] of samples with label i and true label j; rows sum to the label counts (eq. 3)."""
    n_classes, classes = probabilities.shape[1], confident_classes(labels, probabilities)
    counts = np.zeros((n_classes, n_classes))
    np.add.at(counts, (labels[classes >= 0], classes[classes >= 0]), 1)
    np.fill_diagonal(counts, counts.diagonal().clip(min=1))
    of_label = np.bincount(labels, minlength=n_classes)
    return counts / counts.sum(1, keepdims=True) * of_label[:, None]


def n_label_issues(labels: Ints, probabilities: Floats) -> int:
    """Number of samples in the off-diagonal of the confident joint that are not predicted as labelled."""
    classes = confident_classes(labels, probabilities)
    return int(((classes >= 0) & (classes != labels) & (probabilities.argmax(1) != labels)).sum())


def prune_by_noise_rate(labels: Ints, probabilities: Floats, min_per_class: int = 5) -> NDArray[np.bool_]:
    """Samples that pruning by noise rate removes; at least five samples of each label stay."""
    joint, pruned = confident_joint(labels, probabilities), np.zeros(len(labels), dtype=bool)
    for i in range(len(joint)):
        members = np.flatnonzero(labels == i)
        if len(members) <= min_per_class:
            continue
        numbers = np.rint(np.delete(joint[i], i)).astype(int)
        excess = numbers.sum() - (len(members) - min_per_class)
        if excess > 0:
            numbers = np.floor(numbers * (len(members) - min_per_class) / numbers.sum()).astype(int)
        for j, number in zip((k for k in range(len(joint)) if k != i), numbers, strict=True):
            margins = probabilities[members, j] - probabilities[members, i]
            pruned[members[np.argsort(-margins, kind="stable")[:number]]] = True
    return pruned & (probabilities.argmax(1) != labels)
