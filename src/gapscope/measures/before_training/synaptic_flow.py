"""Synaptic flow."""

from __future__ import annotations

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from gapscope.base.errors import NotMeasurable
from gapscope.measures._powered import with_powered_weights
from gapscope.measures.registry import EVERYTHING, register_measure
from gapscope.results.estimate import Estimate


@register_measure(
    "synaptic_flow",
    title="flow through all weights, without data",
    needs=("inputs",),
    units="nats",
    direction="none",
    aggregation="log of the sum over weights",
    cost="1 forward and 1 backward pass of one input",
    cost_class="weights",
    default=False,
    invariances=EVERYTHING,
    oracle="closed form of homogeneous networks",
    reference="Tanaka et al. 2020 (arXiv:2006.05467), eq. 2; Abdelfattah et al. 2021 (arXiv:2101.08134), Sec. 3.2",
)
def synaptic_flow(network: nn.Module, x: Shaped[Tensor, "n ..."]) -> Estimate:
    r"""Logarithm of $\sum_w | w \, \partial R / \partial w |$, R the sum of outputs for ones under absolute weights.

    The sum is over all trainable weights of two or more dimensions; every parameter is replaced by its absolute value,
    batch norm by the absolute value of the linear map that it is in evaluation mode. In a network of L linear layers
    without biases, and ReLU, the sum is L R. The papers report the sum; its logarithm, in nats, has the same order and
    does not overflow. In the finest precision of the device. A proxy that ranks untrained networks.

    Args:
        network: Any network with floating-point inputs.
        x: Inputs; only their shape counts.

    Returns:
        The logarithm.

    Raises:
        NotMeasurable: Inputs are token ids, or nothing flows.

    >>> network = nn.Linear(2, 1, bias=False)
    >>> _ = network.weight.data.copy_(torch.tensor([[1.0, -2.0]]))
    >>> round(synaptic_flow(network, torch.zeros(1, 2)), 6)  # log 3
    1.098612
    """
    weights = [parameter for parameter in network.parameters() if parameter.requires_grad and parameter.ndim >= 2]
    with with_powered_weights(network, x, 1) as seen:
        leaves = [seen.stand_in[weight] for weight in weights]
        if not leaves:
            raise NotMeasurable("Synaptic flow needs a trainable weight of two dimensions; there is none.")
        total = seen.sum_for_ones(tuple(x.shape[1:]))
        gradients = torch.autograd.grad(total, leaves, materialize_grads=True)
        flow = sum((leaf * gradient).abs().sum().item() for leaf, gradient in zip(leaves, gradients, strict=True))
    if not flow > 0:
        raise NotMeasurable("The logarithm of a flow needs one; nothing flows through the weights of this network.")
    return Estimate(torch.tensor(flow, dtype=torch.float64).log().item())
