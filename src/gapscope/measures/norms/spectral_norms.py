"""Product and sum of the layers' spectral norms, kernels as matrices."""

from __future__ import annotations

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from gapscope.measures._numbers import Scalars
from gapscope.measures._weights import log_products, squared_singular_values
from gapscope.measures.registry import EVERYTHING, ScalarInfo, register_measure


@register_measure(
    "spectral_norms",
    title="largest stretching by the weights, layer by layer",
    needs=("inputs",),
    numbers={
        "log_product": ScalarInfo("nats", "lower", "sum over layers of the log of the squared norm", "product"),
        "log_sum": ScalarInfo("nats", "lower", "log of L times the geometric mean of the squared norms", "sum"),
    },
    cost="no pass; eigenvalues of every layer's smaller Gram matrix",
    cost_class="weights",
    default=False,
    invariances=EVERYTHING,
    oracle="closed form; singular values by LAPACK",
    cross_checks=("robust-generalization-measures",),
    reference="Jiang et al. 2020 (arXiv:1912.02178), eq. 32 and 35; reshaped as in Yoshida and Miyato 2017, Sec. 3.2",
)
def spectral_norms(network: nn.Module, x: Shaped[Tensor, "n ..."]) -> Scalars:
    r"""Squared spectral norms of L weight matrices: $\sum_l \log \sigma_1(W_l)^2$, and their balanced sum; exact.

    A kernel [O, I, h, w] counts as the matrix [O, I h w]; `operator_norms` takes the operator that it stands for. The
    sum is $\log \big( L (\prod_l \sigma_1^2)^{1/L} \big)$. Which weights count, and batch norm, as for
    `frobenius_norms`; computed in float64.

    Args:
        network: Any network.
        x: Inputs, of which the first is run to find batch norms.

    Returns:
        The numbers "log_product" and "log_sum".

    Raises:
        NotMeasurable: There is no such weight, or one is zero.

    >>> network = nn.Linear(2, 2)
    >>> _ = network.weight.data.copy_(torch.diag(torch.tensor([3.0, 1.0])))
    >>> round(spectral_norms(network, torch.ones(1, 2))["log_product"], 6)  # log 9
    2.197225
    """
    spectra = squared_singular_values(network, x)
    return Scalars(log_products(torch.stack([values[-1] for values in spectra.values()])))
