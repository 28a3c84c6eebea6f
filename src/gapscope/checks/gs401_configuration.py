"""GS401: a training configuration with less accuracy than the data allow."""

from gapscope.checks.context import Context
from gapscope.checks.registry import Finding, Fine, NotChecked, Outcome, register_check
from gapscope.inspection.losses import evaluate


@register_check("GS401", title="accuracy below the forecast", seconds=3.0, information=True)
def configuration(context: Context) -> Outcome:
    """Report an estimated accuracy significantly below the best baseline."""
    if not context.is_classifier:
        return NotChecked("needs class labels")
    if context.is_untrained:
        return NotChecked("the network is untrained")
    accuracy, high, source = _accuracy(context)
    forecast = context.forecast
    if forecast is None or forecast.abstained_because:
        return NotChecked("no baseline beats the most frequent class")
    best = max(forecast.rows, key=lambda row: row.score)
    error = (best.score * (1 - best.score) / len(context.samples)) ** 0.5
    text = f"{source} accuracy {accuracy:.0%}, {best.method} {best.score:.0%}"
    if high < best.score - 1.645 * error:
        return Finding(
            text, "tune learning rate, epochs and regularization; the data allow more", cost=best.score - accuracy
        )
    return Fine(text)


def _accuracy(context: Context) -> tuple[float, float, str]:
    """Return the accuracy, its upper end and its source: test, estimate or training."""
    if context.test is not None:
        accuracy = test_accuracy(context)
        return accuracy, accuracy + 1.645 * (accuracy * (1 - accuracy) / len(context.test)) ** 0.5, "test"
    estimate = context.estimate
    if estimate is None or estimate.same_noise is None:
        return context.train_accuracy, context.train_accuracy, "training"
    return estimate.same_noise.value, estimate.same_noise.high, "estimated"


def test_accuracy(context: Context) -> float:
    """Return the accuracy on the held-out samples."""
    assert context.test is not None
    return evaluate(context.network, context.test)["accuracy"]
