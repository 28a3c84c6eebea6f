"""Connection sensitivity (SNIP)."""

from __future__ import annotations

from jaxtyping import Shaped
from torch import Tensor, nn

from gapscope.inspection.outputs import as_real
from gapscope.measures._gradients import mean_gradient
from gapscope.measures.registry import EVERYTHING, Sampling, register_measure
from gapscope.results.estimate import Estimate


@register_measure(
    "connection_sensitivity",
    title="change of the loss when single weights are removed (SNIP)",
    needs=("inputs", "targets"),
    units="nats (cross-entropy) or squared target units (regression)",
    direction="none",
    aggregation="sum over weights",
    cost="1 forward and 1 backward pass",
    cost_class="backward",
    default=False,
    invariances=EVERYTHING,
    oracle="closed form",
    sampling=Sampling("whole", 256, lambda k: 4),
    reference="Lee, Ajanthan and Torr 2019 (arXiv:1810.02340), eq. 5; Abdelfattah et al. 2021, eq. 1",
)
def connection_sensitivity(
    network: nn.Module,
    x: Shaped[Tensor, "n ..."],
    y: Shaped[Tensor, "n ..."],
    *,
    chunk_size: int | None = None,
) -> Estimate:
    r"""SNIP: $\sum_w | w \, \partial L / \partial w |$ over all trainable weights of two or more dimensions; exact.

    To first order, the change of the mean loss where a weight is removed, summed over weights. In evaluation mode.
    A proxy that ranks untrained networks.

    Args:
        network: The network.
        x: Inputs, the training data.
        y: Class labels or regression targets.
        chunk_size: Samples per pass, without effect beyond rounding; None for as many as memory allows.

    Returns:
        The sum.

    Raises:
        NotMeasurable: The network has no trainable parameters.

    >>> import torch
    >>> network = nn.Linear(1, 1, bias=False)  # loss (w x - y)^2, gradient 2 (w x - y) x
    >>> _ = nn.init.constant_(network.weight, 2.0)
    >>> connection_sensitivity(network, torch.tensor([[3.0]]), torch.ones(1, 1))  # |2 * 2 * (6 - 1) * 3|
    60
    """
    gradient = mean_gradient(network, x, y, chunk_size=chunk_size)
    own = [as_real(parameter.detach()) for parameter in network.parameters() if parameter.requires_grad]
    ndims = [parameter.ndim for parameter in network.parameters() if parameter.requires_grad]
    rows = zip(own, gradient, ndims, strict=True)
    return Estimate(sum((value.double() * g.double()).abs().sum().item() for value, g, ndim in rows if ndim >= 2))
