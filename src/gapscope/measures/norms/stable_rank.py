"""Stable rank of the layers: Frobenius over spectral norm."""

from __future__ import annotations

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from gapscope.base.errors import NotMeasurable
from gapscope.measures._numbers import Scalars
from gapscope.measures._weights import squared_singular_values
from gapscope.measures.registry import EVERYTHING, ScalarInfo, register_measure


@register_measure(
    "stable_rank",
    title="number of directions that the weights use",
    needs=("inputs",),
    numbers={
        "sum": ScalarInfo("singular values", "lower", "sum over layers"),
        "mean": ScalarInfo("singular values", "lower", "mean over layers"),
    },
    cost="no pass; eigenvalues of every layer's smaller Gram matrix",
    cost_class="weights",
    default=False,
    invariances=EVERYTHING,
    oracle="closed form",
    cross_checks=("robust-generalization-measures", "WeightWatcher"),
    reference="Jiang et al. 2020 (arXiv:1912.02178), eq. 33; Dziugaite et al. 2020, fro-over-spec",
)
def stable_rank(network: nn.Module, x: Shaped[Tensor, "n ..."]) -> Scalars:
    r"""Stable ranks $\lVert W_l \rVert_F^2 / \sigma_1(W_l)^2$ of the weight matrices, their sum and their mean; exact.

    Between 1 (one direction) and the rank. Which weights count, and batch norm, as for `frobenius_norms`.

    Args:
        network: Any network.
        x: Inputs, of which the first is run to find batch norms.

    Returns:
        The numbers "sum" and "mean".

    Raises:
        NotMeasurable: There is no such weight, or one is zero.

    >>> network = nn.Linear(2, 2)
    >>> _ = network.weight.data.copy_(torch.diag(torch.tensor([2.0, 1.0])))
    >>> stable_rank(network, torch.ones(1, 2))["sum"]  # (4 + 1) / 4
    1.25
    """
    spectra = squared_singular_values(network, x).values()
    if any(float(values[-1]) == 0 for values in spectra):
        raise NotMeasurable("A stable rank needs weights other than zero; one weight matrix is all zero.")
    ranks = torch.stack([values.sum() / values[-1] for values in spectra])
    return Scalars({"sum": ranks.sum().item(), "mean": ranks.mean().item()})
