"""Calibration of probabilities: temperature, expected calibration error, reliability curve."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

MAX_BINS, MIN_PER_BIN = 15, 20
# exp(-6) is a temperature at which a difference of 0.05 between two scores is a probability of 1
LOG_TEMPERATURES = (-6.0, 3.0)
SMALLEST = 1e-12


@dataclass(frozen=True)
class ReliabilityCurve:
    """Stated and observed fractions in bins of equal numbers of samples.

    Attributes:
        stated: Mean stated probability of each bin.
        observed: Fraction of each bin that was correct.
        counts: Number of predictions in each bin.
    """

    stated: Float[np.ndarray, " b"]
    observed: Float[np.ndarray, " b"]
    counts: Shaped[np.ndarray, " b"]

    @property
    def error(self) -> float:
        """Expected calibration error: the mean distance of stated and observed, over all predictions."""
        return float(np.average(np.abs(self.stated - self.observed), weights=self.counts))


def tempered(scores: Float[Tensor, "n k"], temperature: float, *, several: bool = False) -> Float[Tensor, "n k"]:
    """Return probabilities of classes, or of several labels.

    Args:
        scores: Predictions of targets 0 and 1, or logits [n, k].
        temperature: Positive; smaller values give probabilities nearer to 0 and 1.
        several: Whether each sample has several labels: every column is then one against 1/2.
    """
    if several:
        return ((2 * scores - 1) / temperature).sigmoid()
    return (scores / temperature).softmax(1)


def cross_entropy(probabilities: Float[Tensor, "n k"], targets: Shaped[Tensor, "n ..."]) -> float:
    """Return the mean cross-entropy in nats: of class labels [n], or of labels 0 and 1 [n, k] (mean over labels)."""
    if targets.ndim == 1:
        return abs(float(probabilities.gather(1, targets[:, None]).clamp(SMALLEST, 1).log().mean()))
    truth = targets.double()
    yes, no = (part.clamp_min(SMALLEST).log() for part in (probabilities, 1 - probabilities))
    return float(-(truth * yes + (1 - truth) * no).mean())


def fit_temperature(scores: Float[Tensor, "n k"], targets: Shaped[Tensor, "n ..."]) -> float:
    """Return the temperature of the smallest cross-entropy, for `tempered`.

    Args:
        scores: Held-out scores [n, k].
        targets: Class labels [n], or labels 0 and 1 [n, k].
    """
    from scipy.optimize import minimize_scalar

    several = targets.ndim > 1

    def loss(log_temperature: float) -> float:
        return cross_entropy(tempered(scores, math.exp(log_temperature), several=several), targets)

    result = minimize_scalar(loss, bounds=LOG_TEMPERATURES, method="bounded", options={"xatol": 0.01})
    return math.exp(float(result.x))


def reliability_curve(probabilities: Float[Tensor, "n k"], targets: Shaped[Tensor, "n ..."]) -> ReliabilityCurve:
    """Return the reliability of the predicted class, or of all probabilities of several labels.

    Bins hold equal numbers of predictions, at most 15 and at least 20 predictions each.

    Args:
        probabilities: Probabilities [n, k].
        targets: Class labels [n], or labels 0 and 1 [n, k].
    """
    if targets.ndim == 1:
        largest = probabilities.max(1)
        stated, correct = largest.values, largest.indices == targets
    else:
        stated, correct = probabilities.flatten(), targets.flatten() > 0
    order = stated.argsort()
    n_bins = max(1, min(MAX_BINS, len(order) // MIN_PER_BIN))
    bins = [(stated[rows].double(), correct[rows].double()) for rows in torch.tensor_split(order, n_bins)]
    return ReliabilityCurve(
        np.array([float(part.mean()) for part, _ in bins]),
        np.array([float(part.mean()) for _, part in bins]),
        np.array([len(part) for part, _ in bins]),
    )
