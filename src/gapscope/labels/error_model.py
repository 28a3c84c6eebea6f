r"""Probability that a label is wrong, from held-out scores of the classes.

Let $s_i$ be scores of sample i that do not depend on its own label: leave-one-out predictions of a kernel machine, or
logarithms of out-of-fold probabilities. Its true class is k with probability $q_{ik} = \mathrm{softmax}(s_i / T)_k$,
and a sample of class k gets the label g with probability $M_{kg}$. The temperature T (of a grid) and the noise matrix M
maximize the likelihood of the given labels; M by expectation maximization (Dawid and Skene 1979, with one annotator and
a classifier as prior). A label g is then wrong with probability

$$e_i = 1 - \frac{q_{ig} M_{gg}}{\sum_k q_{ik} M_{kg}} .$$

Errors may be uneven: each class has its own rate and its own odds of the wrong classes.

**Hard problems.** A kernel machine is sometimes wrong with confidence, which looks like a label error. With h the
fraction of clean labels that it predicts wrongly, all probabilities of errors are therefore multiplied by
$\max(1 - 2h, 0)$, and samples are ranked by a mixture of the log odds of $e_i$ and those of a model without noise, with
the weight $\min(2h, 1)$ of the latter. For h, no more errors are assumed than are contradicted by the most confident
predictions, of the machine itself or of a forest (`gapscope.labels.second_opinion`): mistakes become rare there, errors
do not. No probability is above 0.95, because lists of
the most likely errors held fewer than that.

**Errors that crowd together** at the border of two classes are followed by the predictions, and not contradicted: the
upper end of the rate is higher where confident predictions are contradicted less than the others (`hidden_errors`).

**Positions** (tokens, pixels) are ranked by the log odds of the model without noise. Labels of one sample are not
independent: the interval is that of as many labels as have the variance of the contradicted labels per sample.

**Classes of two samples.** If their predictions speak against each other, either may be the wrong one. Probabilities of
errors in classes of one or two samples are therefore halved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gapscope.labels.noise_rate import clean_accuracy
from gapscope.statistics.canonical_order import mean_over_ties

# Temperatures of leave-one-out predictions of one-hot labels, and of logarithms of probabilities.
SCORE_TEMPERATURES = (0.02, 0.03, 0.045, 0.07, 0.1, 0.15, 0.22, 0.33, 0.5, 0.8)
# factors of about sqrt(2) around 1, where probabilities are calibrated
LOG_TEMPERATURES = (0.5, 0.7, 1.0, 1.4, 2.0, 3.0)
# Prior counts of M: labels per class that are wrong at the mean rate, and per class that are spread over all classes.
# With 0.5 for the second, average precision fell by 0.01 on four of seven data sets; 50 hides errors between two
# classes. These and the next constants were chosen on seven data sets with planted errors of six kinds; the study
# `labels uneven` evaluates them on eight others.
PRIOR_RATE, PRIOR_CLASSES = 5.0, 5.0
# Weight of h in the factor of the probabilities and in the mixture of the ranking. With 1, samples of hard data that
# were reported as errors with probability 0.5 to 0.7 were errors in 0.38 of the cases; with 2, in 0.63.
HARDNESS = 2.0
# Fraction of the predictions, by their margin, of which the contradicted labels bound the errors. With all predictions,
# the rate of Fashion-MNIST without errors was 0.10; with this part it was 0.02.
CONFIDENT = 0.3
# no label is certainly wrong, by judgment
MAX_PROBABILITY = 0.95
# Normal quantile of the upper end. The fraction of contradicted labels exceeds the rate by the mistakes of the
# predictions, so that a small addition suffices. With 0.84, coverage of human-like errors of 20 % was 0.886, not 0.930.
Z_HIGH = 1.0
# Errors per contradicted label beyond those of the confident predictions that two classes hide. Coverage of human-like
# errors of 20 % in tables of two classes was 0.81 without it, 0.95 with 0.2, and 0.97 with 0.3 (tables, photographs and
# texts of `CHOSEN_ON` of the study `labels uneven`, with one class against the rest too).
HIDDEN = 0.3


@dataclass(frozen=True)
class ErrorModel:
    """Fitted temperature and noise matrix."""

    temperature: float
    noise: Float[Tensor, "c c"]  # M: rows are true classes, columns labels


@dataclass(frozen=True)
class ErrorProbabilities:
    """Probabilities of label errors, and what follows for all labels.

    Attributes:
        error: Probability that the label is wrong, [n].
        suggestion: Probability of the predicted class, given the label, [n].
        order: Log odds of the ranking, large for likely errors, [n].
        rate: Mean probability of an error, with h of all predictions.
        low: Lower end of the 90 % interval of the rate.
        high: Upper end; at least the fraction of labels that differ from the prediction.
        clean_accuracy: Accuracy of the predictions on clean labels.
        gain: Log likelihood of all labels, less that without noise, in nats.
    """

    error: Float[Tensor, " n"]
    suggestion: Float[Tensor, " n"]
    order: Float[Tensor, " n"]
    rate: float
    low: float
    high: float
    clean_accuracy: float
    gain: float


def wilson_high(fraction: float, n: float) -> float:
    """Return the one-sided 84 % upper end of Wilson's interval for a fraction of n.

    >>> round(wilson_high(0.0, 100), 4)
    0.0099
    """
    middle = fraction + Z_HIGH**2 / (2 * n)
    half = Z_HIGH * math.sqrt(fraction * (1 - fraction) / n + Z_HIGH**2 / (4 * n * n))
    return min((middle + half) / (1 + Z_HIGH**2 / n), 1.0)


def _noise_matrix(expected: Tensor) -> Tensor:
    """Return M from expected counts [true class, label], with the prior counts."""
    n_classes = len(expected)
    wrong = expected.clone().fill_diagonal_(0.0)
    mean_rate = wrong.sum() / expected.sum()
    odds = wrong + PRIOR_CLASSES / n_classes
    odds = odds.fill_diagonal_(0.0)
    odds = odds / odds.sum(1, keepdim=True)
    rates = (wrong.sum(1) + PRIOR_RATE * mean_rate) / (expected.sum(1) + PRIOR_RATE)
    return odds * rates[:, None] + torch.diag(1 - rates)


def _joint(probabilities: Tensor, noise: Tensor, labels: Tensor) -> Tensor:
    """Return the probabilities [n, c] of each true class together with the given label."""
    return probabilities * noise.T[labels]


def _fit_noise(probabilities: Tensor, labels: Tensor) -> tuple[float, Tensor]:
    """Return the mean log likelihood and M of one temperature."""
    n_classes = probabilities.shape[1]
    start = 0.05
    noise = torch.full(
        (n_classes, n_classes), start / (n_classes - 1), dtype=torch.float64, device=labels.device
    )
    noise.fill_diagonal_(1 - start)
    # 25 iterations, by judgment
    for _ in range(25):
        joint = _joint(probabilities, noise, labels)
        posterior = joint / joint.sum(1, keepdim=True)
        counts = torch.zeros_like(noise).index_add_(0, labels, posterior)  # [label, true class]
        noise = _noise_matrix(counts.T)
    likelihood = _joint(probabilities, noise, labels).sum(1).log().mean()
    return float(likelihood), noise


def class_probabilities(scores: Float[Tensor, "n c"], temperature: float) -> Float[Tensor, "n c"]:
    """Return softmax(scores / T), at least 1e-30 so that no class is impossible."""
    return (scores.double() / temperature).softmax(1).clamp_min(1e-30)


def tempered_loss(
    scores: Float[Tensor, "n c"], labels: Int[Tensor, " n"], temperatures: tuple[float, ...]
) -> tuple[float, float]:
    """Return the smallest cross-entropy over the temperatures, in nats per sample, and its temperature."""
    losses = []
    for temperature in temperatures:
        probabilities = class_probabilities(scores, temperature)
        loss = -probabilities.gather(1, labels[:, None]).log().mean()
        losses.append((float(loss), temperature))
    return min(losses)


def fit_error_model(
    scores: Float[Tensor, "n c"], labels: Int[Tensor, " n"], temperatures: tuple[float, ...]
) -> ErrorModel:
    """Return the temperature and the noise matrix of the largest likelihood.

    Args:
        scores: Held-out scores of the classes.
        labels: Given labels.
        temperatures: Candidates for T.
    """
    # M and T are fitted to two million scores; more samples are not used
    n_fitted = max(2_000_000 // scores.shape[1], 1)
    if len(scores) > n_fitted:
        rows = torch.linspace(0, len(scores) - 1, n_fitted, device=scores.device).long()
        scores = scores[rows]
        labels = labels[rows]
    best = (-math.inf, ErrorModel(math.nan, torch.empty(0, 0)))
    for temperature in temperatures:
        likelihood, noise = _fit_noise(class_probabilities(scores, temperature), labels)
        if likelihood > best[0]:
            best = (likelihood, ErrorModel(temperature, noise))
    return best[1]


def _error_odds(joint: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the probability of an error, and its log odds."""
    own = joint.gather(1, labels[:, None]).squeeze(1)
    # summed over the other classes: one minus the own probability would round to 0
    others = joint.scatter(1, labels[:, None], 0.0).sum(1)
    return others / (own + others), others.log() - own.log()


def confident_errors(scores: Float[Tensor, "n c"], labels: Int[Tensor, " n"]) -> float:
    """Return the fraction of labels that the most confident 30 % of the predictions contradict.

    Confident among all predictions, or among those of the same class: the smaller fraction of the two. Predictions of
    equal confidence count with their mean, also where only some of them are among the 30 %.

    Args:
        scores: Held-out scores of the classes, [n, c].
        labels: Given labels, [n].
    """
    n = len(scores)
    first, second = scores.topk(2, 1).values.unbind(1)
    predicted = scores.argmax(1)
    margin = first - second
    order = margin.argsort(descending=True, stable=True)
    is_wrong = predicted != labels
    overall = mean_over_ties(is_wrong, margin)[order[: math.ceil(CONFIDENT * n)]].mean()
    order = order[predicted[order].argsort(stable=True)]
    counts = predicted.bincount(minlength=scores.shape[1])
    rank = torch.arange(n, device=order.device) - (counts.cumsum(0) - counts)[predicted[order]]
    is_confident = rank < CONFIDENT * counts[predicted[order]]
    of_class = margin.unique(return_inverse=True)[1] + n * predicted
    within = mean_over_ties(is_wrong, of_class)[order[is_confident]].mean()
    return float(torch.minimum(overall, within))


def hidden_errors(contradicted: float, confident: float, n_classes: int) -> float:
    """Return the fraction of errors that may crowd together so closely that the predictions follow them.

    Errors spread evenly are contradicted at confident predictions as often as at all. The excess at the others is of a
    hard problem, or of errors near the borders of the classes. Where most labels of a region are wrong there, they
    agree with each other with probability 1 / (C - 1), and no prediction contradicts them.

    Args:
        contradicted: Fraction of labels that differ from the prediction.
        confident: The same among the most confident predictions.
        n_classes: Number of classes, C.

    >>> round(hidden_errors(0.2, 0.1, 2), 4)
    0.03
    """
    return HIDDEN * max(contradicted - confident, 0.0) / max(n_classes - 1, 1)


def independent_labels(is_contradicted: Bool[Tensor, " n"], groups: Int[Tensor, " n"]) -> float:
    """Return the number of independent labels whose mean has the variance of that of labels in groups, at most n.

    It is that of the groups if they do not differ: then nothing is known of how they would.

    >>> independent_labels(torch.tensor([True] * 4 + [False] * 12), torch.arange(16) // 4)
    3.0
    """
    n = len(is_contradicted)
    fraction = is_contradicted.double().mean()
    excess = torch.zeros(int(groups.max()) + 1, dtype=torch.float64, device=groups.device)
    excess.index_add_(0, groups, is_contradicted.double() - fraction)
    n_groups = len(groups.unique())
    variance = excess.square().sum() * n_groups / max(n_groups - 1, 1)
    if float(variance) == 0:
        return float(n_groups)
    return min(float(n * n * fraction * (1 - fraction) / variance), float(n))


def error_probabilities(
    scores: Float[Tensor, "n c"],
    labels: Int[Tensor, " n"],
    temperatures: tuple[float, ...] = SCORE_TEMPERATURES,
    groups: Int[Tensor, " n"] | None = None,
    confident: float = 1.0,
    *,
    of_positions: bool = False,
) -> ErrorProbabilities:
    """Fit the model, and return the probability of an error for each label.

    Args:
        scores: Held-out scores of the classes, [n, c].
        labels: Given labels, [n], all below c.
        temperatures: Candidates for T.
        groups: Group of each label, without which it was predicted: the sample, if the labels are those of positions.
        confident: Fraction of labels that the confident predictions of another learner contradict.
        of_positions: Whether the labels are those of positions (tokens, pixels).
    """
    n, n_classes = scores.shape
    predicted = scores.argmax(1)
    is_agreed = predicted == labels
    model = fit_error_model(scores, labels, temperatures)
    joint = _joint(class_probabilities(scores, model.temperature), model.noise, labels)
    error, log_odds = _error_odds(joint, labels)
    # of two samples of a class, none can be told to be the wrong one
    is_untold = labels.bincount(minlength=n_classes)[labels] <= 2
    error = torch.where(is_untold, error / 2, error)
    accuracy = float(is_agreed.double().mean())
    raw_rate = float(error.mean())
    # with the confident errors, the mean of the rate was too low by 0.01 more where 20 % of the labels are wrong
    rate = raw_rate * max(
        1 - HARDNESS * (1 - min(clean_accuracy(accuracy, raw_rate, n_classes), 1.0)), 0.0
    )
    assumed = raw_rate
    # in classes of fewer than ten, an error takes the confidence away from the predictions of its neighbours
    if n >= 10 * n_classes:
        assumed = min(raw_rate, confident_errors(scores, labels), confident)
    clean = min(clean_accuracy(accuracy, assumed, n_classes), 1.0)
    hardness = 1 - clean
    factor = max(1 - HARDNESS * hardness, 0.0)

    loss, temperature = tempered_loss(scores, labels, temperatures)
    gain = float(joint.sum(1).log().sum()) + n * loss
    _, plain_odds = _error_odds(class_probabilities(scores, temperature), labels)
    if of_positions:
        weight = 1.0
    else:
        weight = min(HARDNESS * hardness, 1.0)
    suggestion = joint.gather(1, predicted[:, None]).squeeze(1) / joint.sum(1)

    if groups is None:
        n_independent = n
    else:
        n_independent = independent_labels(~is_agreed, groups)
        if not of_positions:  # copies of a label gain what one does
            gain *= n_independent / n
    # normal quantile of the lower end: with 1.645, it was above 0 in 11 % of the answers without errors, with 1.96
    # in 7 %.
    half = 1.96 * math.sqrt(raw_rate * (1 - raw_rate) / n_independent)
    # a larger weight of the hardness than for the upper end: with 3, it exceeded the true rate in 2.1 % of the answers
    low = raw_rate * (1 - 4.0 * hardness) - hardness**2 - half
    # errors that the machine follows are not contradicted
    followed = float((error * is_agreed).mean())
    if not of_positions:
        followed += hidden_errors(1 - accuracy, assumed, n_classes)
    high = min(wilson_high(1 - accuracy, n_independent) + followed, 1.0)
    discounted = (factor * error).clamp(max=MAX_PROBABILITY)
    return ErrorProbabilities(
        error=discounted,
        suggestion=torch.where(
            is_agreed, 1 - discounted, (factor * suggestion).clamp(max=MAX_PROBABILITY)
        ),
        order=(1 - weight) * log_odds + weight * plain_odds,
        rate=rate,
        low=min(max(low, 0.0), rate),
        high=max(high, rate),
        clean_accuracy=clean,
        gain=gain,
    )
