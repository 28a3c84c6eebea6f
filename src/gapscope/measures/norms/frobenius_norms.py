"""Product and sum of the layers' Frobenius norms."""

from __future__ import annotations

from jaxtyping import Shaped
from torch import Tensor, nn

from gapscope.measures._numbers import Scalars
from gapscope.measures._weights import layer_weights, log_products, squared_frobenius_norms
from gapscope.measures.registry import EVERYTHING, ScalarInfo, register_measure


@register_measure(
    "frobenius_norms",
    title="size of the weights, layer by layer",
    needs=("inputs",),
    numbers={
        "log_product": ScalarInfo("nats", "lower", "sum over layers of the log of the squared norm", "product"),
        "log_sum": ScalarInfo("nats", "lower", "log of L times the geometric mean of the squared norms", "sum"),
    },
    cost="no pass (1 sample, to find batch norms)",
    cost_class="weights",
    default=False,
    invariances=EVERYTHING,
    oracle="closed form",
    cross_checks=("robust-generalization-measures",),
    reference="Jiang et al. 2020 (arXiv:1912.02178), eq. 37 and 39; Dziugaite et al. 2020 (arXiv:2010.11924)",
)
def frobenius_norms(network: nn.Module, x: Shaped[Tensor, "n ..."]) -> Scalars:
    r"""Squared Frobenius norms of L weights, $\sum_l \log \lVert W_l \rVert_F^2$, and their balanced sum; exact.

    The sum is $\log \big( L (\prod_l \lVert W_l \rVert_F^2)^{1/L} \big)$: the smallest value that
    $\sum_l \lVert W_l \rVert_F^2$ reaches when layers are rescaled against each other. Matrices are all trainable
    weights of two or more dimensions, each once; batch norm is folded into the layer before it; biases do not count.
    Accumulated in float64. Dziugaite et al. report half of (value - log n).

    Args:
        network: Any network.
        x: Inputs, of which the first is run to find batch norms.

    Returns:
        The numbers "log_product" and "log_sum".

    Raises:
        NotMeasurable: There is no such weight, or one is zero.

    >>> import torch
    >>> network = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False))
    >>> for layer in network:
    ...     _ = nn.init.ones_(layer.weight)
    >>> round(frobenius_norms(network, torch.ones(1, 2)).scalars()["log_product"], 6)  # log 4 + log 2
    2.079442
    """
    return Scalars(log_products(squared_frobenius_norms(layer_weights(network, x))))
