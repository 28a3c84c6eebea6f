"""Expected accuracy on new data, by the best available route."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gapscope.base.errors import NotMeasurable
from gapscope.inspection.losses import evaluate
from gapscope.statistics.intervals import wilson_interval

if TYPE_CHECKING:
    from gapscope.checks.context import Context
    from gapscope.results.estimate import IntervalEstimate


@dataclass(frozen=True)
class Expected:
    """Accuracy on new data with its 90 % interval.

    Attributes:
        value: The accuracy.
        low: Lower end.
        high: Upper end.
        source: How it was obtained, after the number: "on test samples", "estimated on new data", "in five folds".
    """

    value: float
    low: float
    high: float
    source: str


def expected_accuracy(context: Context) -> Expected:
    """Return the accuracy on new data.

    From held-out samples if there are any, from cross-validation for a scikit-learn estimator, else the estimate from
    the training samples.

    Raises:
        NotMeasurable: None of these gives an answer; the message is the reason.
    """
    if not context.has_accuracy:
        raise NotMeasurable("needs class labels")
    if context.is_untrained:
        raise NotMeasurable("the network is untrained")
    if context.diverged is not None:
        if not context.is_classifier:
            raise NotMeasurable("the weights of the network are not finite")
        accuracy, n = context.train_accuracy, len(context.samples)
        # the most frequent of several classes in the samples need not be the most frequent one of new data
        low = wilson_interval(accuracy, n, 1 - 0.1 / context.n_classes)[0]
        return Expected(
            accuracy, low, wilson_interval(accuracy, n)[1], "of the most frequent class: the network has diverged"
        )
    if context.test is not None:
        # labels or positions of one sample are not independent: as many as there are samples
        n = len(context.test)
        if context.estimator is not None:
            accuracy = context.estimator.test_accuracy
        else:
            assert context.test_network is not None
            accuracy = evaluate(context.test_network, context.test)["accuracy"]
        return Expected(accuracy, *wilson_interval(accuracy, n), "on test samples")
    if context.estimator is not None:
        accuracy, n = context.estimator.cross_validated(context.seconds_left), len(context.everything)
        return Expected(accuracy, *wilson_interval(accuracy, n), "in five folds")
    estimate = context.estimate
    if estimate is None or estimate.estimate is None:
        raise NotMeasurable(f"{context.failures.get('estimate', 'it cannot be estimated')}. Pass test=")
    return _widened(context, estimate.estimate)


# Half-widths of the estimate's interval are multiplied by this: on 21 data sets, its ends were too near.
WIDER = 1.2


def _widened(context: Context, answer: IntervalEstimate) -> Expected:
    """Return an estimate with an interval that holds on data sets of others.

    It reaches to the score of the best method without the network, the second reading of the same data. None is above
    the training accuracy: the estimator was fitted to networks that were trained for long.
    """
    value, accuracy = answer.value, context.train_accuracy
    low, high = value - WIDER * (value - answer.low), value + WIDER * (answer.high - value)
    forecast = context.forecast
    if forecast is not None and not forecast.abstained_because:
        best = max(row.score for row in forecast.rows)
        low, high = min(low, best), max(high, best)
    value = min(value, accuracy)
    high = min(high, wilson_interval(accuracy, len(context.samples))[1], 1.0)
    return Expected(value, max(min(low, value), 0.0), max(high, value), "estimated on new data")
