"""Parameter count: the baseline of every other measure."""

from __future__ import annotations

from torch import nn

from gapscope.measures.registry import EVERYTHING, register_measure
from gapscope.results.estimate import Estimate


@register_measure(
    "parameter_count",
    title="number of parameters",
    needs=(),
    units="parameters",
    direction="lower",
    aggregation="sum over all trainable parameters",
    cost="no pass",
    reference="",
    cost_class="weights",
    invariances=EVERYTHING,
    oracle="closed form",
)
def parameter_count(network: nn.Module) -> Estimate:
    """Count the trainable parameters, shared ones once (exact).

    >>> parameter_count(nn.Linear(3, 2))
    8
    """
    return Estimate(sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad))
