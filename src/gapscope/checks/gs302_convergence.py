"""GS302: training that has not converged, or does not learn what a kernel machine learns."""

from gapscope.checks.context import Context
from gapscope.checks.registry import Finding, Fine, NotChecked, Outcome, register_check

FALLING, MARGIN = 0.1, 0.05


def _still_falling(losses: list[float]) -> float:
    """Return the relative fall of the loss over the last fifth of the epochs."""
    k = max(2, len(losses) // 5)
    before, after = sum(losses[-2 * k : -k]) / k, sum(losses[-k:]) / k
    return (before - after) / max(abs(before), 1e-12)


@register_check("GS302", title="training has not converged", seconds=0.5)
def convergence(context: Context) -> Outcome:
    """Report a training accuracy below an RBF kernel's LOO accuracy, or a falling loss."""
    if not context.is_classifier:
        return NotChecked("needs class labels")
    raised = next((f for f in getattr(context.monitor, "findings", ()) if f.code == "GS302"), None)
    if raised is not None:
        return Finding(f"at epoch {raised.epoch}: {raised.evidence}", raised.action, cost=0.1)
    if context.is_untrained:
        return NotChecked("the network is untrained")
    forecast = context.forecast
    rbf = None if forecast is None or forecast.abstained_because else forecast.row("RBF ridge")
    n = len(context.samples)
    accuracy = context.train_accuracy
    if rbf is not None:
        error = (rbf.score * (1 - rbf.score) / n + accuracy * (1 - accuracy) / n) ** 0.5
        if accuracy < rbf.score - MARGIN - 1.96 * error:
            return Finding(
                f"training accuracy {accuracy:.0%}; an RBF kernel predicts held-out samples at {rbf.score:.0%}",
                "train longer, or raise the learning rate or the width",
                cost=rbf.score - accuracy,
            )
    losses = [float(row["train_loss"]) for row in context.history if "train_loss" in row]
    behind = rbf is None or accuracy < rbf.score + MARGIN
    if behind and len(losses) >= 10 and accuracy < 0.9 and _still_falling(losses) > FALLING:
        fall = _still_falling(losses)
        return Finding(
            f"the training loss fell by {fall:.0%} over the last fifth of the epochs, at a training accuracy of "
            f"{accuracy:.0%}",
            "train longer",
            cost=(1 - accuracy) / 4,
        )
    if rbf is None and not losses:
        return NotChecked("pass history=, one mapping per epoch with train_loss")
    return Fine(f"training accuracy {accuracy:.0%}")
