"""Sizes of a network: the baselines of all other measures.

Common parameters: see `gapscope.measures`.
"""

from __future__ import annotations

import math
from functools import partial

from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from gapscope.base.errors import NotMeasurable
from gapscope.gradients.backward import differentiable_kernels
from gapscope.inspection.outputs import measurement_mode, prepare_inputs
from gapscope.measures._forward import Inputs
from gapscope.measures.registry import ScalarInfo, register_measure
from gapscope.results.estimate import Estimate

_register = partial(register_measure, cost_class="weights", default=False)


@_register(
    title="multiply-accumulate operations of one forward pass",
    numbers=ScalarInfo("multiplications with an addition", "none", "sum over layers, of one sample"),
    reference="Abdelfattah et al. 2021 (arXiv:2101.08134), the baseline of zero-cost proxies",
)
def multiply_accumulates(network: nn.Module, x: Inputs) -> Estimate:
    r"""Count the multiply-accumulate operations of one forward pass of one sample (exact).

    A linear layer of I inputs and O outputs has $I O$ per position, a convolution $O \cdot I / g \cdot k_h k_w$ per
    output position; attention counts its two products. Biases, normalization, activations and pooling are not counted.
    """
    # fused layers hide their products from the counter; where a weight has a gradient, torch fuses none
    with measurement_mode(network) as network, differentiable_kernels(network.modules()):
        network.requires_grad_(True)
        counter = FlopCounterMode(display=False)
        with counter:
            network(prepare_inputs(network, x[:1]).clone())
    return Estimate(counter.get_total_flops() / 2)


@_register(
    title="size and depth, as counted by the baseline of the 2020 competition",
    numbers=ScalarInfo("samples", "lower", "sum over weight matrices"),
    reference="Jiang et al. 2020 (arXiv:2012.07976), baseline; after Bartlett et al. 2019, JMLR 20(63), Theorem 7",
)
def vc_dimension_bound(network: nn.Module, *, input_size: int = 32) -> Estimate:
    r"""Compute the size baseline of the 2020 competition (exact).

    $d + 2 d \log(22\, d\, s^2) \sum_l |W_l|$. d is the number of weights of two or more dimensions (shared ones once),
    $|W_l|$ their number of entries, s the side of the images, 32 in the competition. The constants are the
    competition's; only ranks are meaningful.

    Args:
        input_size: Side s of the input images.

    Raises:
        NotMeasurable: There is no such weight.
    """
    sizes = [weight.numel() for weight in network.parameters() if weight.requires_grad and weight.ndim >= 2]
    if not sizes:
        raise NotMeasurable("Got no trainable weight of two dimensions or more; the VC dimension bound needs one.")
    depth = len(sizes)
    return Estimate(depth + 2 * depth * math.log(22 * depth * input_size**2) * sum(sizes))
