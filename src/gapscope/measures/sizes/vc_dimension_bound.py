"""A bound on the Vapnik-Chervonenkis dimension: the size baseline of the 2020 competition."""

from __future__ import annotations

import math

from torch import nn

from gapscope.base.errors import NotMeasurable
from gapscope.measures.registry import EVERYTHING, register_measure
from gapscope.results.estimate import Estimate


@register_measure(
    "vc_dimension_bound",
    title="size and depth, as the 2020 competition's baseline counts them",
    needs=(),
    units="samples",
    direction="lower",
    aggregation="sum over weight matrices",
    cost="no pass",
    cost_class="weights",
    default=False,
    invariances=EVERYTHING,
    oracle="closed form, and values of the competition's own networks",
    cross_checks=("PGDL baseline",),
    reference="Jiang et al. 2020 (arXiv:2012.07976), baseline; after Bartlett et al. 2019, JMLR 20(63), Theorem 7",
)
def vc_dimension_bound(network: nn.Module, *, input_size: int = 32) -> Estimate:
    r"""Size baseline of the 2020 competition, $d + 2 d \log(22\, d\, s^2) \sum_l |W_l|$; exact.

    d is the number of weights of two or more dimensions (kernels and matrices, each shared one once), $|W_l|$ their
    number of entries, s the side of the images, 32 in the competition. Natural logarithm. The constants are the
    competition's; only ranks mean something.

    Args:
        network: Any network.
        input_size: Side s of the input images.

    Returns:
        The bound.

    Raises:
        NotMeasurable: There is no such weight.

    >>> round(vc_dimension_bound(nn.Linear(3, 2)), 3)
    121.27
    """
    sizes = [weight.numel() for weight in network.parameters() if weight.requires_grad and weight.ndim >= 2]
    if not sizes:
        raise NotMeasurable("A bound on the VC dimension needs a trainable weight of two dimensions; there is none.")
    depth = len(sizes)
    return Estimate(depth + 2 * depth * math.log(22 * depth * input_size**2) * sum(sizes))
