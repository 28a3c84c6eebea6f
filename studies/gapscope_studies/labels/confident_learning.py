r"""Confident learning, cleanlab's method (Northcutt et al. 2021, arXiv:1911.00068).

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
    """Return the probability of the given label."""
    return probabilities[np.arange(len(labels)), labels]


def normalized_margin(labels: Ints, probabilities: Floats) -> Floats:
    """Return the probability of the given label minus the largest other one, mapped to [0, 1]."""
    rest = probabilities.copy()
    rest[np.arange(len(labels)), labels] = -np.inf
    return (self_confidence(labels, probabilities) - rest.max(1) + 1) / 2


def confident_joint(labels: Ints, probabilities: Floats) -> Floats:
    """Return calibrated counts [i, j] of samples with label i and true label j (eq. 3)."""
    n_classes = probabilities.shape[1]
    means = [
        probabilities[labels == j, j].mean() if (labels == j).any() else np.inf
        for j in range(n_classes)
    ]
    reached = probabilities >= np.array(means) - 1e-6
    classes, confident = np.where(reached, probabilities, -np.inf).argmax(1), reached.any(1)
    counts = np.zeros((n_classes, n_classes))
    np.add.at(counts, (labels[confident], classes[confident]), 1)
    np.fill_diagonal(counts, counts.diagonal().clip(min=1))
    return counts / counts.sum(1, keepdims=True) * np.bincount(labels, minlength=n_classes)[:, None]


def prune_by_noise_rate(
    labels: Ints, probabilities: Floats, min_per_class: int = 5
) -> NDArray[np.bool_]:
    """Return a mask of the samples that pruning by noise rate removes."""
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
