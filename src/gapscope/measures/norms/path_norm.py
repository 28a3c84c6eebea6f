"""Path norm."""

from __future__ import annotations

from jaxtyping import Shaped
from torch import Tensor, nn

from gapscope.measures._powered import path_sum
from gapscope.measures.registry import register_measure
from gapscope.results.estimate import Estimate


@register_measure(
    "path_norm",
    title="strength of all paths from input to output",
    needs=("inputs",),
    units="squared output / squared input",
    direction="lower",
    aggregation="sum over paths of the squared product of weights",
    cost="1 forward pass of one input",
    cost_class="weights",
    default=False,
    invariances=("layer rescaling", "unit permutation"),
    oracle="sum over all paths, enumerated",
    cross_checks=("robust-generalization-measures",),
    reference="Neyshabur, Tomioka and Srebro 2015 (arXiv:1503.00036), eq. 7; Jiang et al. 2020, eq. 44",
)
def path_norm(network: nn.Module, x: Shaped[Tensor, "n ..."]) -> Estimate:
    r"""Sum over all paths from inputs and biases to outputs of the squared product of the weights on them; exact.

    It is the sum of the outputs of the network with squared weights for an input of ones. Batch norm is the linear map
    that it is in evaluation mode. In float64. Networks that are not piecewise linear (smooth activations, attention,
    layer norm) have none. Dziugaite et al. report $\sqrt{\cdot / n}$.

    Args:
        network: A network that is piecewise linear.
        x: Inputs; only their shape counts.

    Returns:
        The path norm.

    Raises:
        NotMeasurable: The network is not piecewise linear, or its inputs are token ids.

    >>> import torch
    >>> network = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
    >>> for layer, weight in ((network[0], [[1.0], [2.0]]), (network[2], [[3.0, 1.0]])):
    ...     _ = layer.weight.data.copy_(torch.tensor(weight))
    >>> path_norm(network, torch.ones(1, 1))  # (1 * 3)^2 + (2 * 1)^2
    13
    """
    return Estimate(path_sum(network, x).item())
