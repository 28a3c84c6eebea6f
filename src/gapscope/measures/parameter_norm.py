"""Squared norm of the parameters."""

from __future__ import annotations

from torch import nn

from gapscope.inspection.checks import check_finite
from gapscope.inspection.outputs import as_real
from gapscope.measures.registry import register_measure
from gapscope.results.estimate import Estimate


@register_measure(
    "parameter_norm",
    title="size of the weights",
    needs=(),
    units="squared weight units",
    direction="lower",
    aggregation="sum over all trainable parameters",
    cost="no pass",
    reference="Jiang et al., Fantastic Generalization Measures, 2020, section C.2",
    cost_class="weights",
    invariances=("unit permutation",),
    oracle="closed form",
)
def parameter_norm(network: nn.Module) -> Estimate:
    r"""Compute the squared L2 norm of all trainable parameters, biases included (exact).

    $\sum_i |\theta_i|^2$. Accumulated in float64.

    >>> layer = nn.Linear(2, 1)
    >>> _ = nn.init.constant_(layer.weight, 2.0), nn.init.constant_(layer.bias, 1.0)
    >>> parameter_norm(layer)
    9
    """
    check_finite(network)
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    return Estimate(sum(as_real(parameter.detach()).double().square().sum().item() for parameter in parameters))
