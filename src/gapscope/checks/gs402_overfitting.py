"""GS402: a training accuracy far above the accuracy on new data."""

from gapscope.checks.context import Context
from gapscope.checks.gs401_configuration import test_accuracy
from gapscope.checks.registry import Finding, Fine, NotChecked, Outcome, register_check

FROM = 0.07


@register_check("GS402", title="overfitting", seconds=3.0, information=True)
def overfitting(context: Context) -> Outcome:
    """Report a gap of seven points or more between training and new data."""
    if not context.is_classifier:
        return NotChecked("needs class labels")
    if context.is_untrained:
        return NotChecked("the network is untrained")
    train = context.train_accuracy
    if context.test is not None:
        accuracy = test_accuracy(context)
        high = accuracy + 1.645 * (accuracy * (1 - accuracy) / len(context.test)) ** 0.5
        source = "on test samples"
    else:
        estimate = context.estimate
        if estimate is None or estimate.same_noise is None:
            return NotChecked(
                f"{context.failures.get('estimate', 'the accuracy cannot be estimated')}. Pass test=, held-out samples"
            )
        accuracy, high, source = estimate.same_noise.value, estimate.same_noise.high, "estimated on new data"
    text = f"training accuracy {train:.0%}, {accuracy:.0%} {source}"
    if train - high < FROM:
        return Fine(text)
    return Finding(
        text,
        "regularize (dropout, weight decay, gapscope.GradientSimilarityPenalty), stop earlier, or add data",
        cost=(train - accuracy) / 4,
    )
