"""Expected accuracy (R^2 of regression) on new data, by the best available route."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gapscope.base.budget import BudgetSpent
from gapscope.base.errors import GapscopeError, NotMeasurable
from gapscope.base.samples import Samples
from gapscope.checks.compared_labels import in_words
from gapscope.checks.output_unit import find_output_unit
from gapscope.inspection.losses import evaluate
from gapscope.inspection.outputs import inspection_mode, network_outputs
from gapscope.measures.fitted_labels import FEATURES, is_large
from gapscope.results.estimate import NORMAL_90, IntervalEstimate, percent
from gapscope.results.formatting import format_number, pluralize
from gapscope.results.outcomes import Finding
from gapscope.statistics.intervals import r_squared_interval, wilson_interval
from gapscope.statistics.renumbering import class_marks, find_renumbering

if TYPE_CHECKING:
    from gapscope.accuracy.accuracy_after_training import AccuracyEstimate
    from gapscope.checks.context import Context

# Samples of which the network's gradients are read. Quantities of the data alone use as many as the budget allows.
MAX_SAMPLES = 2000
# Width of the interval of a score on test samples from which nothing is cleared: half of the scale, by judgment.
MAX_WIDTH = 0.5
# What other test samples cost a network at most, in units of what they cost a method without it: by judgment.
MAX_SHARE = 1.5


@dataclass(frozen=True)
class Expected:
    """Accuracy or R^2 on new data with its 90 % interval.

    Attributes:
        value: The accuracy, or R^2 of regression.
        low: Lower end.
        high: Upper end.
        source: How it was obtained, after the number: "on test samples", "estimated on new data", "in five folds".
        note: The root mean squared error of regression, in words; else empty.
        unclear: Why the score clears the network of nothing; empty if it may.
        is_new: Whether it is of new data, not of repeats of the training samples.
    """

    value: float
    low: float
    high: float
    source: str
    note: str = ""
    unclear: str = ""
    is_new: bool = True

    @property
    def missing(self) -> tuple[float, float]:
        """What is missing to a perfect score, and what is at most: by the lower end."""
        missing = max(1 - self.value, 0.0)
        return missing, max(1 - self.low, missing)


def regression_score(predictions: Tensor, targets: Tensor) -> IntervalEstimate:
    """Return R^2 with its 90 % interval.

    Args:
        predictions: Predictions [n, k] or [n].
        targets: Targets [n, k] or [n].
    """
    n = len(targets)
    truth = targets.detach().cpu().double().reshape(n, -1)
    predicted = predictions.detach().cpu().double().reshape(n, -1)
    return IntervalEstimate(*r_squared_interval(predicted.numpy(), truth.numpy()))


def error_in_words(predictions: Tensor, targets: Tensor) -> str:
    """Return the root mean squared error of one target in its units, in words; empty for several targets.

    Args:
        predictions: Predictions [n, k] or [n].
        targets: Targets [n, k] or [n].
    """
    n = len(targets)
    if targets.numel() != n:
        return ""
    residuals = predictions.detach().cpu().double().reshape(
        n
    ) - targets.detach().cpu().double().reshape(n)
    return f"root mean squared error {format_number(float(residuals.square().mean().sqrt()))}"


def untrained_because(context: Context) -> str:
    """Return why a network counts as untrained: its weights are the initial ones, or nothing indicates training.

    Labels of held-out samples indicate it, as a history does, whatever the network predicts.

    Returns:
        The reason; empty for a trained network, one that has diverged, and an estimator.
    """
    if context.prepared is None:
        if context.estimator is None and context.diverged is None:
            return "there is no network"
        return ""
    if context.initial_state is not None:
        state = context.prepared.bare.state_dict()
        is_initial = all(
            torch.equal(state[name], tensor)
            for name, tensor in context.initial_state.items()
            if name in state
        )
        if is_initial:
            return "the network is untrained"
        return ""
    # who passes held-out labels asks for a score: a training that failed is not taken for none
    has_labels = context.test is not None and context.test.targets is not None
    if context.history or has_labels or (context.test is not None and not context.has_accuracy):
        return ""
    # 0.1 above the most frequent class, or half of what is above it where that is less, by judgment
    above = min(0.1, (1 - context.most_frequent) / 2)
    if context.score_of_valid >= context.most_frequent + above:
        return ""
    reason = (
        "the network predicts hardly better than a constant, as an untrained one; if it was trained, pass history= or "
        "initial_state=, or pass test="
    )
    if bool(context.invalid_samples[0].any()):
        return reason
    labels = context.samples.y.cpu()
    if context.is_classifier:
        n_classes = max(context.logits.shape[1], context.n_classes)
        found = find_renumbering(
            class_marks(context.logits.argmax(1), n_classes), class_marks(labels, n_classes)
        )
        if found is not None:
            words = in_words(found, context.everything.class_names, 3)
            reason += f" (it predicts {words}: they may be numbered otherwise than in its training)"
    if not context.has_accuracy:
        unit = find_output_unit(context.logits, labels, context.train_score)
        if unit is not None:
            reason += f" ({unit.evidence}: their unit may not be that of the targets)"
    return reason


def expected_score(context: Context) -> Expected:
    """Return the accuracy on new data, or R^2 of regression.

    From held-out samples if there are any, from cross-validation for a scikit-learn estimator, else the estimate from
    the training samples. Of a fine-tuned network, for which there is none, the forecast from its features before.

    Raises:
        NotMeasurable: None of these gives an answer; the message is the reason.
    """
    if context.untrained_because:
        raise NotMeasurable(context.untrained_because)
    if context.diverged is not None:
        if not context.is_classifier:
            raise NotMeasurable("the weights of the network are not finite")
        accuracy = context.train_score
        n = len(context.samples)
        # the most frequent of several classes in the samples need not be the most frequent one of new data
        low = wilson_interval(accuracy, n, 1 - 0.1 / max(len(context.labels.unique()), 2))[0]
        return Expected(
            accuracy,
            low,
            wilson_interval(accuracy, n)[1],
            "of the most frequent class: the network has diverged",
        )
    if context.test is not None:
        return _on_test(context)
    if context.estimator is not None:
        rows = context.rows_without_repeats
        score = context.estimator.cross_validated(context.seconds_left, rows.numpy())
        words = "in five folds"
        if context.copies.repeats:
            words += " without repeats"
        return Expected(score.value, score.low, score.high, words)
    estimate = context.estimate
    if estimate is not None and estimate.estimate is not None:
        return _widened(context, estimate.estimate)
    reason = context.failures.get("estimate", "it cannot be estimated").rstrip(".")
    is_fine_tuned = context.prepared is not None and is_large(context.prepared.bare)
    if not is_fine_tuned or not context.is_classifier:
        raise NotMeasurable(f"{reason}. Pass test=")
    if context.initial_state is None:
        raise NotMeasurable(
            f"{reason}. Pass test=, or initial_state=, as it was before fine-tuning"
        )
    forecast = context.network_forecast
    if forecast is None or forecast.abstained_because or forecast.combined != (FEATURES,):
        raise NotMeasurable(f"{reason}. Pass test=")
    training = context.show(context.train_score)
    if wilson_interval(context.train_score, len(context.samples))[1] < forecast.low:
        raise NotMeasurable(
            f"{reason}. The forecast from its features before training, {context.show(forecast.low)} or more, is of a "
            f"network that was trained to its end, and the training accuracy is {training}. Pass test="
        )
    # fine-tuning moves features little: those of before predict new data as the network does
    answer = IntervalEstimate(forecast.score, forecast.low, forecast.high)
    score = _below_training(context, answer)
    return Expected(
        score.value, score.low, score.high, "forecast from its features before training"
    )


def _below_training(context: Context, answer: IntervalEstimate) -> IntervalEstimate:
    """Return a score on new data that is at most the training accuracy, of which it is then no better known.

    A score that is lowered to it has the error of both below it.
    """
    accuracy = context.train_score
    below, above = wilson_interval(accuracy, len(context.samples))
    low = answer.low
    value = answer.value
    if value > accuracy:
        low = accuracy - math.hypot(value - low, accuracy - below)
        value = accuracy
    high = min(answer.high, above, 1.0)
    return IntervalEstimate(value, max(min(low, value), 0.0), max(high, value))


def note_on_test(context: Context) -> str:
    """Return what held-out samples without labels are used for; an empty string for others."""
    if context.test is None or context.test.targets is not None:
        return ""
    return (
        "The test samples have no labels: they are compared with the data, but the accuracy on new data is not judged. "
        "Pass test= with labels, such as (x, y), or nothing for an estimate."
    )


def estimate_after_training(context: Context) -> AccuracyEstimate | None:
    """Return the estimated accuracy of the trained network (None: the reason is in `context.failures`).

    Args:
        context: What the checks use.
    """
    from gapscope.accuracy.accuracy_after_training import estimate_accuracy

    if not context.is_classifier:
        task = context.everything.task
        context.failures["estimate"] = f"an estimate has no answer for this task ({task})"
        return None
    assert context.prepared is not None
    seconds = context.seconds_for_kernel
    if context.is_part and seconds is not None:
        # of more samples, the estimate's kernels are approximated, and have 15 CPU seconds: twice what
        # 30,000 rows take (benchmarks/check), so that the noise of a timing does not decide whether the
        # accuracy on new data is judged.
        seconds = min(seconds, 15.0)
    samples = context.everything
    if context.copies.repeats:
        samples = samples.subset(context.not_repeats(torch.arange(len(samples))))
    try:
        # no check uses the accuracy on clean labels, so the label noise is not estimated again
        estimate = estimate_accuracy(
            context.prepared.bare,
            samples,
            label_noise=0.0,
            time_budget=seconds,
            max_exact=MAX_SAMPLES,
            initial_state=context.initial_state,
        )
    except BudgetSpent:
        context.failures["estimate"] = (
            f"an estimate takes more than {seconds:.0f} CPU s; time_budget=None allows them"
        )
        return None
    except GapscopeError as error:
        context.failures["estimate"] = str(error)
        return None
    if estimate.estimate is None:
        reason = estimate.abstained_because
        # `estimate_accuracy` advises n_training=, which a check has not
        if estimate.bracket is not None:
            low, high = (percent(end) for end in estimate.bracket)
            reason = (
                f"between {low} and {high}, because these may not be all samples that the network was trained on; "
                "if they are, pass initial_state=, a clone of the state dictionary before training"
            )
        context.failures["estimate"] = reason
    return estimate


def comparable_score(context: Context) -> Expected | None:
    """Return the score on new data that can be compared with what the training samples allow, else None.

    On test samples that differ from the training samples (GS110), it is raised by what these cost a method that
    predicts them from the training samples. It is clear only where more than they can explain is missing.

    Args:
        context: What the checks use.
    """
    expected = context.expected
    if expected is None or context.test is None or "GS110" in context.ignored:
        return expected
    outcome, labels = context.shift
    if not isinstance(outcome, Finding):
        return expected
    reason = "the test samples differ from the training samples (GS110)"
    reason += "; pass ignore=['GS110'] to judge by them all the same"
    if labels is None or math.isnan(labels.loss.value):
        context.failures["expected"] = reason
        return None
    loss = labels.loss
    if not loss.value:
        return expected
    score = most = context.train_score
    if context.has_accuracy:
        most = wilson_interval(score, len(context.samples))[1]
    # a method that predicts nothing any more does not tell what a network loses
    if labels.scores[1].value > 0:
        most = min(most, expected.high + MAX_SHARE * loss.high)
    value = max(min(expected.value + loss.value, score), expected.value)
    return replace(
        expected,
        value=value,
        low=min(expected.low + loss.low, value),
        high=max(most, value, expected.high),
        source=f"{expected.source}, with what these cost {labels.method}",
        unclear=expected.unclear or reason,
    )


def _on_test(context: Context) -> Expected:
    """Return the score on held-out samples: on those that repeat no training sample, if there are any."""
    test = context.test
    assert test is not None
    if test.targets is None:
        raise NotMeasurable("the test samples have no labels; pass test= with them, such as (x, y)")
    words = "on test samples"
    unclear = ""
    rows = _new_in_test(context, test)
    are_copies = not len(rows)
    if are_copies:
        rows = torch.arange(len(test))
        words = "on test samples that all repeat training samples"
        unclear = "all test samples repeat training samples: pass test= with new ones"
    elif len(rows) < len(test):
        words = f"on test samples {context.copies.without}, {len(rows):,} of {len(test):,}"
    score, error = _score_on_test(context, test, rows)
    if not are_copies and score.high - score.low > MAX_WIDTH:
        number = pluralize(len(rows), "test sample")
        unclear = f"the {context.score_name} on {number} is too uncertain"
    return Expected(
        score.value, score.low, score.high, words, error, unclear, is_new=not are_copies
    )


def _score_on_test(context: Context, test: Samples, rows: Tensor) -> tuple[IntervalEstimate, str]:
    """Return the score on some test samples, and the error of regression in words (else empty)."""
    if context.estimator is not None:
        return context.estimator.on_test(test.original(rows).numpy())
    assert context.test_network is not None
    if len(rows) < len(test):
        test = test.subset(rows)
    if context.has_accuracy:
        # labels or positions of one sample are not independent: as many as there are samples
        accuracy = evaluate(context.test_network, test)["accuracy"]
        return IntervalEstimate(accuracy, *wilson_interval(accuracy, len(test))), ""
    with inspection_mode(context.test_network):
        outputs = network_outputs(context.test_network, test.inputs)
    score = regression_score(outputs, test.y)
    if score.value != score.value:
        raise NotMeasurable("the targets of the test samples do not vary")
    return score, error_in_words(outputs, test.y)


def _new_in_test(context: Context, test: Samples) -> Tensor:
    """Return the indices of test samples that repeat no training sample: all if few do, or if chance explains them."""
    rows = torch.arange(len(test))
    copies = torch.tensor(context.copies.repeats_in_test, dtype=torch.long)
    return rows[~torch.isin(rows, copies)]


def _widened(context: Context, answer: IntervalEstimate) -> Expected:
    """Return an estimate with an interval that holds on data sets of others.

    It reaches to the score of the best method without the network, the second reading of the same data. None is above
    the training accuracy: the estimator was fitted to networks that were trained for long.
    """
    value = answer.value
    # half-widths a fifth larger than the estimate's: on 21 data sets, the ends of its intervals were too near
    low = value - 1.2 * (value - answer.low)
    high = value + 1.2 * (answer.high - value)
    forecast = context.forecast
    if forecast is not None and not forecast.abstained_because:
        best = max(row.score for row in forecast.rows)
        low = min(low, best)
        high = max(high, best)
    score = _below_training(context, IntervalEstimate(value, low, high))
    return Expected(score.value, score.low, score.high, "estimated on new data")


def shortfall_interval(context: Context) -> IntervalEstimate | None:
    """Return by how much the best method without the network predicts more, with its 90 % interval.

    Errors: of the best method's score, of the network's accuracy, and of how near a sound network comes to it.
    There is none where outputs and targets differ in unit.

    Args:
        context: What the checks use.
    """
    if (
        context.untrained_because
        or context.best_method is None
        or context.output_unit is not None
        or (context.diverged is not None and not context.is_classifier)
    ):
        return None
    best = context.best_method[1]
    score = low = high = context.train_score
    if context.comparable is not None:
        score = context.comparable.value
        low = context.comparable.low
        high = context.comparable.high
    # standard deviation between the accuracy of a sound network and that of the best method without it, beyond
    # the error of both: over 21 data sets with 200 samples each it is 0.053, sampling error included.
    value = best.value - score
    reach = NORMAL_90 * 0.05
    ends = (value, value - math.hypot(best.value - best.low + high - score, reach))
    ends += (value + math.hypot(best.high - best.value + score - low, reach),)
    return IntervalEstimate(*(min(max(end, 0.0), 1.0) for end in ends))


def best_method(context: Context) -> tuple[str, IntervalEstimate] | None:
    """Return name and score (90 % interval) of the best method without the network.

    None if the forecast abstains.

    Args:
        context: What the checks use.
    """
    forecast = context.forecast
    if forecast is None or forecast.abstained_because:
        return None
    best = max(forecast.rows, key=lambda row: row.score)
    if context.has_accuracy:
        return best.method, IntervalEstimate(
            best.score, *wilson_interval(best.score, len(context.distinct))
        )
    score = regression_score(best.predictions, context.distinct.y)
    shift = best.score - score.value  # against the leave-one-out mean
    return best.method, IntervalEstimate(
        best.score, score.low + shift, min(score.high + shift, 1.0)
    )
