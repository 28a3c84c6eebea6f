"""GS301: memorization of label errors during training."""

from gapscope.checks.context import Context
from gapscope.checks.registry import Finding, Fine, NotChecked, Outcome, register_check


@register_check("GS301", title="memorization of label errors", seconds=0.01, information=True)
def memorization(context: Context) -> Outcome:
    """Report an overfitting alarm that was raised during the monitored run."""
    alarm = getattr(context.monitor, "alarm", None)
    if alarm is None:
        return NotChecked("pass monitor=, a gapscope.Monitor with an alarm")
    if not alarm.raised:
        return Fine("the alarm was not raised")
    return Finding(
        f"the overfitting alarm was raised at epoch {alarm.raised_at}",
        "stop there, or train with gapscope.GradientSimilarityPenalty",
        cost=0.05,
    )
