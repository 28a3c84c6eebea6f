"""Calibration of probabilities: temperature, expected calibration error, reliability curve."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float, Shaped
from scipy.optimize import minimize_scalar
from torch import Tensor

from gapscope.statistics.canonical_order import mean_over_ties
from gapscope.statistics.kernel_ridge import MAX_ITERATIONS, Columns

Targets = Shaped[Tensor, "n ..."]


# 15 bins as in Guo et al. 2017; 20 samples have a standard error of 0.11 or less
MAX_BINS, MIN_PER_BIN = 15, 20
# smallest probability in a logarithm
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


@dataclass(frozen=True)
class Calibration:
    r"""Map from scores to probabilities: $(1 - \epsilon)\,\mathrm{softmax}(s / T) + \epsilon\,q$.

    The second term has the frequencies q of the labels. It is the part of the labels that the scores cannot tell, such
    as label noise: a softmax alone would have to be wrong about either the sure or the unsure predictions.

    Attributes:
        temperature: T; smaller values give probabilities nearer to 0 and 1.
        background: Weight $\epsilon$ of the frequencies, in [0, 1).
        frequencies: Frequencies q of the K classes, or of K labels.
        several: Whether each sample has several labels; a sigmoid of (2 s - 1) / T then replaces the softmax.
    """

    temperature: float
    background: float
    frequencies: Float[Tensor, " k"]
    several: bool = False

    def probabilities(self, scores: Columns) -> Columns:
        """Return probabilities for scores.

        Args:
            scores: Predictions of targets 0 and 1, or logits.
        """
        sharp = tempered(scores, self.temperature, several=self.several)
        return _mixture(sharp, self.frequencies, self.background)


def _mixture(sharp: Tensor, frequent: Tensor, weight: float) -> Tensor:
    return (1 - weight) * sharp + weight * frequent


def tempered(scores: Columns, temperature: float, *, several: bool = False) -> Columns:
    """Return the softmax of scores [n, k] over a temperature; with several labels a sigmoid of each against 1/2."""
    if several:
        return ((2 * scores - 1) / temperature).sigmoid()
    return (scores / temperature).softmax(1)


def cross_entropy(probabilities: Columns, targets: Targets) -> float:
    """Return the mean cross-entropy in nats: of class labels [n], or of labels 0 and 1 [n, k] (mean over labels)."""
    return abs(float(_of_given(probabilities, targets).clamp(SMALLEST, 1).log().mean()))


def _of_given(probabilities: Tensor, targets: Tensor) -> Tensor:
    """Return the probabilities of the given labels."""
    if targets.ndim == 1:
        return probabilities.gather(1, targets[:, None])[:, 0]
    return torch.where(targets > 0, probabilities, 1 - probabilities).flatten()


def _best_background(sharp: Tensor, frequent: Tensor) -> float:
    """Return the weight of the second probabilities that maximizes the likelihood of a mixture (EM)."""
    weight = 0.1
    for _ in range(MAX_ITERATIONS):
        mixture = _mixture(sharp, frequent, weight).clamp_min(SMALLEST)
        new = float((weight * frequent / mixture).mean())
        if abs(new - weight) < 1e-5:
            break
        weight = new
    return weight


def fit_calibration(scores: Columns, targets: Targets) -> Calibration:
    """Return the temperature and background of the smallest cross-entropy.

    Args:
        scores: Held-out scores [n, k].
        targets: Class labels [n], or labels 0 and 1 [n, k].
    """
    several = targets.ndim > 1
    if several:
        frequencies = targets.double().mean(0)
    else:
        frequencies = targets.bincount(minlength=scores.shape[1]).double() / len(targets)
    frequent = _of_given(frequencies.expand_as(scores), targets)

    def mixture(log_temperature: float) -> tuple[float, float]:
        sharp = _of_given(tempered(scores, math.exp(log_temperature), several=several), targets)
        background = _best_background(sharp, frequent)
        likelihood = _mixture(sharp, frequent, background).clamp_min(SMALLEST)
        return float(-likelihood.log().mean()), background

    # exp(-6) is a temperature at which a difference of 0.05 between two scores is a probability of 1
    result = minimize_scalar(
        lambda log_temperature: mixture(log_temperature)[0],
        bounds=(-6.0, 3.0),
        method="bounded",
        options={"xatol": 0.01},
    )
    log_temperature = float(cast(Any, result).x)
    return Calibration(math.exp(log_temperature), mixture(log_temperature)[1], frequencies, several)


def reliability_curve(probabilities: Columns, targets: Targets) -> ReliabilityCurve:
    """Return the reliability of the predicted class, or of all probabilities of several labels.

    Bins hold equal numbers of predictions, at most 15 and at least 20 predictions each. Predictions with equal
    probabilities that two bins divide are observed as often in both.

    Args:
        probabilities: Probabilities [n, k].
        targets: Class labels [n], or labels 0 and 1 [n, k].
    """
    if targets.ndim == 1:
        largest = probabilities.max(1)
        stated = largest.values
        correct = largest.indices == targets
    else:
        stated = probabilities.flatten()
        correct = targets.flatten() > 0
    correct = mean_over_ties(correct, stated)
    order = stated.argsort()
    n_bins = max(1, min(MAX_BINS, len(order) // MIN_PER_BIN))
    bins = torch.tensor_split(order, n_bins)
    return ReliabilityCurve(
        np.array([float(stated[rows].double().mean()) for rows in bins]),
        np.array([float(correct[rows].mean()) for rows in bins]),
        np.array([len(rows) for rows in bins]),
    )
