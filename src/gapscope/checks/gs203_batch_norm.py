"""GS203: stale running statistics of batch norm."""

from gapscope.batch_norm.advice.batch_norm import advise_batch_norm
from gapscope.batch_norm.norm_layers import BATCH_NORMS
from gapscope.checks.context import Context
from gapscope.checks.registry import Finding, Fine, NotChecked, Outcome, register_check

STALE = 0.1


@register_check("GS203", title="stale batch norm statistics", seconds=3.0)
def batch_norm(context: Context) -> Outcome:
    """Report running statistics that are stale: they change the loss by a tenth or more."""
    if not any(isinstance(module, BATCH_NORMS) for module in context.prepared.bare.modules()):
        return NotChecked("no batch norm")
    if context.is_untrained:
        return NotChecked("the network is untrained")
    if context.batch_size is None:
        return NotChecked("pass batch_size=, the batch size of training")
    advice = advise_batch_norm(context.network, context._plain, batch_size=context.batch_size, passes=4)
    evidence = f"batches of {context.batch_size} add {advice.total.excess:.2g} to a training loss of {advice.loss:.2g}"
    if abs(advice.running_loss - advice.loss) > STALE * max(advice.loss, 0.01):
        return Finding(
            f"running statistics are stale: loss {advice.running_loss:.2g} with them, {advice.loss:.2g} without",
            "refresh them with gapscope.batch_norm.refresh_population, or train longer at a lower momentum",
            cost=0.02,
        )
    return Fine(evidence)
