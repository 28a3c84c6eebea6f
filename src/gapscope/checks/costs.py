"""Costs of findings in accuracy, from leave-one-out predictions of kernel machines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gapscope.base.samples import Samples
from gapscope.checks.registry import list_checks
from gapscope.results.estimate import NORMAL_90, IntervalEstimate, paired_difference
from gapscope.results.outcomes import Finding, Fine, NotChecked, Outcome
from gapscope.statistics.baselines import nearest_neighbours, rbf_ridge, sample_features
from gapscope.statistics.intervals import r_squared_scales

if TYPE_CHECKING:
    from gapscope.checks.context import Context

# Kernel machines of costs are exact, on at most this many samples.
MAX_EXACT = 1000
# two random splits into halves, by judgment
N_HALVES = 4
# A network with less than this part of a kernel machine's errors gains from data in its own way, by judgment.
FAR_BELOW = 0.5


def thinned(n: int, at_most: int = MAX_EXACT) -> Tensor:
    """Return evenly spaced indices of n samples."""
    return torch.linspace(0, n - 1, min(n, at_most), dtype=torch.float64).round().long()


def _loo_correct(features: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    row = rbf_ridge(features, labels, n_classes=n_classes)
    return row.correct(labels).double().cpu()


def cost_of_labels(
    samples: Samples,
    flagged: Tensor,
    n_classes: int,
    memorized: float,
    score: IntervalEstimate | None = None,
) -> IntervalEstimate:
    r"""Return the accuracy on correct labels that flagged labels cost, with a 90 % interval.

    Leave-one-out accuracy on unflagged samples without the flagged ones, minus that with them, paired by sample. A
    kernel machine is little disturbed by label errors, and a nearest neighbour as much as a network that memorizes
    them: the cost is their mean with the weight m of the neighbour, and the interval reaches over both. The accuracy
    on held-out labels limits m: a network as accurate as the kernel machine suffers no more than it. Of regression
    targets, the same in R^2.

    Args:
        samples: Samples with class labels, or with targets of regression.
        flagged: Indices of the flagged ones.
        n_classes: Number of classes; used where there are classes.
        memorized: Fraction m of the flagged labels that the network predicts.
        score: Accuracy of the network on held-out labels; None if it is not known.
    """
    is_flagged = torch.zeros(len(samples), dtype=torch.bool)
    is_flagged[flagged.cpu()] = True
    rows = thinned(len(samples), 2 * MAX_EXACT)
    is_flagged = is_flagged[rows]
    features = sample_features(samples.subset(rows))
    labels = samples.y.cpu()[rows]
    clean = ~is_flagged
    if samples.kind == "regression":
        scales = _scales(labels[clean])

        def kernel_scores(x: Tensor, y: Tensor) -> Tensor:
            return 1 - _loo_squares(x, y, scales)

        def nearest_scores(x: Tensor, y: Tensor) -> Tensor:
            predicted = nearest_neighbours(x, y, ks=(1,)).predictions
            errors = predicted - y.double().reshape(len(y), -1)
            return 1 - (errors / scales).square().sum(1)
    else:

        def kernel_scores(x: Tensor, y: Tensor) -> Tensor:
            return _loo_correct(x, y, n_classes)

        def nearest_scores(x: Tensor, y: Tensor) -> Tensor:
            row = nearest_neighbours(x, y, ks=(1,), n_classes=n_classes)
            return row.correct(y).double()

    with_errors = [of(features, labels)[clean] for of in (kernel_scores, nearest_scores)]
    without = [of(features[clean], labels[clean]) for of in (kernel_scores, nearest_scores)]
    of_kernel, of_nearest = (b - a for a, b in zip(with_errors, without, strict=True))
    # a network may suffer as little as the one, or as much as the other
    weights = (memorized, 0.0, 1.0)
    best, worst = (float(scores.mean()) for scores in with_errors)
    if score is not None and best > worst:
        below = ((best - end) / (best - worst) for end in (score.value, score.high, score.low))
        weights = tuple(min(max(weight, 0.0), memorized) for weight in below)
    costs = [paired_difference((m * of_nearest + (1 - m) * of_kernel).tolist()) for m in weights]
    low = min(cost.low for cost in costs)
    high = max(cost.high for cost in costs)
    return replace(costs[0], low=low, high=high)


def gain_of_twice_the_data(
    samples: Samples, n_classes: int, seed: int, *, score: float | None = None
) -> IntervalEstimate:
    r"""Return the accuracy that twice the data add to an RBF ridge, with a 90 % interval.

    With the leave-one-out error e of all samples and the error h of random halves, both on the same samples, a power
    law gives $e - e^2 / h = e g / h$ for the gain g = h - e of the last doubling. Errors: of the paired differences,
    and between the halves. Above 1,000 samples, e and h are those of 1,000, and the factor e / h is applied to the
    error of all.

    Args:
        samples: Samples with class labels.
        n_classes: Number of classes.
        seed: Seed of the halves.
        score: Leave-one-out accuracy of the best method on all samples, of whose error the same part is left; None for
            that of the kernel machine on at most 1,000.
    """
    part = samples.subset(thinned(len(samples)))
    features = sample_features(part)
    labels = part.y.cpu()
    n = len(part)
    everything = _loo_correct(features, labels, n_classes)
    generator = torch.Generator().manual_seed(seed)
    halves = torch.zeros(n, dtype=torch.float64)
    draws: list[float] = []
    for _ in range(N_HALVES // 2):
        order = torch.randperm(n, generator=generator)
        correct = torch.zeros(n, dtype=torch.float64)
        for rows in (order[: n // 2], order[n // 2 :]):
            correct[rows] = _loo_correct(features[rows], labels[rows], n_classes)
            draws.append(float(correct[rows].mean()))
        halves += correct / (N_HALVES // 2)
    growth = paired_difference(everything.tolist(), halves.tolist())
    error = max(1 - float(everything.mean()), 1 / n)
    spread = math.sqrt(
        ((growth.high - growth.low) / 2 / NORMAL_90) ** 2 + _variance(draws) / len(draws)
    )
    ends = [growth.value, growth.value - NORMAL_90 * spread, growth.value + NORMAL_90 * spread]
    # a ratio of errors below 1 / 4 would be a doubling that removes three quarters of the errors
    if score is None:
        left = error
    else:
        left = max(1 - score, 1 / len(samples))
    gains = [left * max(g, -0.2 * error) / (error + max(g, -0.2 * error)) for g in ends]
    return IntervalEstimate(*(float(gain) for gain in gains))


def _variance(values: list[float]) -> float:
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / max(len(values) - 1, 1)


def cost_of_scales(samples: Samples, n_classes: int) -> IntervalEstimate:
    """Return what raw columns cost an RBF ridge against standardized ones, with a 90 % interval.

    That is accuracy, or R^2 of regression.

    Args:
        samples: Samples with one class label, several labels, or targets of regression.
        n_classes: Number of classes; used where there is one label.
    """
    part = samples.subset(thinned(len(samples)))
    labels = part.y.cpu()
    raw = part.inputs.cpu().double().flatten(1)
    raw = raw - raw.mean(0)
    standardized = sample_features(part)
    if samples.kind == "regression":
        scales = _scales(labels)
        scores = [-_loo_squares(x, labels, scales) for x in (standardized, raw)]
    elif samples.kind == "multi-label":
        scores = [rbf_ridge(x, labels.bool()).correct(labels.bool()) for x in (standardized, raw)]
    else:
        scores = [_loo_correct(x, labels, n_classes) for x in (standardized, raw)]
    return paired_difference(scores[0].tolist(), scores[1].tolist())


def settle_costs(outcomes: Sequence[Outcome], context: Context) -> list[Outcome]:
    """Return outcomes with the costs that depend on the accuracy of a trained network and of the best method.

    Args:
        outcomes: Outcomes of checks.
        context: What the checks computed; nothing expensive is computed here.
    """
    known = "forecast" in vars(context) and "expected" in vars(context)
    rules = {"GS103": _gain_of_network, "GS105": _cost_of_scales, "GS110": _cost_of_shift}
    return [
        rules[outcome.code](outcome, context, known)
        if outcome.code in rules and not isinstance(outcome, NotChecked)
        else outcome
        for outcome in outcomes
    ]


def _gain_of_network(outcome: Finding | Fine, context: Context, known: bool) -> Outcome:
    """Return the gain from more data, or that it is not known: a far worse kernel machine stands for no network."""
    row = context.kernel() if known else None
    expected = context.expected if known else None
    if row is None or expected is None or 1 - expected.low >= FAR_BELOW * (1 - row.score):
        return outcome
    # where next to nothing is missing, nothing is to be gained
    if expected.is_new and expected.missing[0] < list_checks()[outcome.code].min_cost:
        return outcome
    reason = (
        f"the {context.score_name} of the network on new data, {context.show(expected.value)}, is far above that of "
        f"the kernel machine whose gain is known, {context.show(row.score)}; see gapscope.learning_curve"
    )
    return NotChecked(reason, outcome.code, outcome.title)


def _cost_of_scales(finding: Finding | Fine, context: Context, known: bool) -> Outcome:
    """Return unscaled inputs that cost a trained network at most what it lacks to the best method.

    What raw columns cost a kernel machine need not cost a network: the interval begins at 0, unless the best method
    predicts significantly more than the network.
    """
    if (
        isinstance(finding, Fine)
        or not finding.interval
        or context.estimator is not None
        or context.untrained_because
    ):
        return finding
    cost = finding.cost or 0.0
    low, high = finding.interval
    most = IntervalEstimate(cost, 0.0, high)
    if known:
        most = context.shortfall_interval or most
    ends = (min(low, most.low), min(high, most.high))
    return replace(finding, cost=min(cost, most.value), interval=ends)


def _cost_of_shift(finding: Finding | Fine, context: Context, known: bool) -> Outcome:
    """Return other test samples that cost what they cost a method which predicts them from the training samples.

    That is at most what the training samples allow beyond the score on them: the score of the best method, or on the
    training samples where it is lower. What is left is of training.
    """
    if isinstance(finding, Fine) or not known or context.expected is None:
        return finding
    labels = context.shift[1]
    if labels is None or math.isnan(labels.loss.value):
        return finding
    most = context.train_score
    if context.best_method is not None:
        most = min(most, context.best_method[1].value)
    return replace(finding, cost=max(min(labels.loss.value, most - context.expected.value), 0.0))


def _scales(targets: Tensor) -> Tensor:
    return torch.from_numpy(r_squared_scales(targets.double().numpy()))


def _loo_squares(features: Tensor, targets: Tensor, scales: Tensor) -> Tensor:
    """Return what R^2 of each sample [n] lacks, by an RBF ridge of the others."""
    predicted = rbf_ridge(features, targets).predictions.cpu().double().reshape(len(targets), -1)
    return ((predicted - targets.double().reshape(len(targets), -1)) / scales).square().sum(1)


def balanced(correct: Tensor, labels: Tensor) -> float:
    """Return the mean over classes of the accuracy in each class."""
    return float(
        torch.stack([correct[labels == c].double().mean() for c in labels.unique()]).mean()
    )


def cost_of_imbalance(row: Any, labels: Tensor) -> float:
    """Return the balanced accuracy that a kernel machine gains if its scores are divided by class frequencies."""
    counts = labels.bincount(minlength=row.predictions.shape[1]).clamp_min(1)
    weighted = row.predictions.cpu() / (counts.double() / len(labels))
    return balanced(weighted.argmax(1) == labels, labels) - balanced(
        row.predictions.cpu().argmax(1) == labels, labels
    )
