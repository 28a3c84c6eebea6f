"""Multiply-accumulate operations of one forward pass."""

from __future__ import annotations

from jaxtyping import Shaped
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from gapscope.gradients.double_backward import differentiable_kernels
from gapscope.inspection.outputs import measurement_mode, prepare_inputs
from gapscope.measures.registry import EVERYTHING, register_measure
from gapscope.results.estimate import Estimate


@register_measure(
    "multiply_accumulates",
    title="work of one forward pass",
    needs=("inputs",),
    units="multiplications with an addition",
    direction="none",
    aggregation="sum over layers, of one sample",
    cost="1 forward pass of one sample",
    cost_class="weights",
    default=False,
    invariances=EVERYTHING,
    oracle="closed form",
    reference="Abdelfattah et al. 2021 (arXiv:2101.08134), beside which zero-cost proxies must stand",
)
def multiply_accumulates(network: nn.Module, x: Shaped[Tensor, "n ..."]) -> Estimate:
    r"""Multiply-accumulate operations of all matrix products and convolutions for one sample; exact.

    A linear layer of I inputs and O outputs has $I O$ of them at every position, a convolution
    $O \cdot I / g \cdot k_h k_w$ at every position of its output; attention counts its two products. Biases,
    normalization, activations and pooling are not counted. It is a size, beside which other measures must stand.

    Args:
        network: Any network.
        x: Inputs, of which the first is run.

    Returns:
        The count.

    >>> import torch
    >>> multiply_accumulates(nn.Linear(3, 2), torch.ones(5, 3))
    6
    """
    # fused layers hide their products from the counter; where a weight has a gradient, torch fuses none
    with measurement_mode(network) as network, differentiable_kernels(network.modules()):
        network.requires_grad_(True)
        counter = FlopCounterMode(display=False)
        with counter:
            network(prepare_inputs(network, x[:1]).clone())
    return Estimate(counter.get_total_flops() / 2)
