"""Spectrally normalized margin bound, around the origin."""

from __future__ import annotations

import math

import torch
from jaxtyping import Int, Shaped
from torch import Tensor, nn

from gapscope.base.errors import NotMeasurable
from gapscope.measures._forward import check_labelled, forward_pass, low_margin, margins_of
from gapscope.measures._weights import layer_weights, log_products, squared_frobenius_norms, squared_singular_values
from gapscope.measures.registry import EVERYTHING, Sampling, register_measure
from gapscope.results.estimate import Estimate


def log_spectral_bound(network: nn.Module, x: Tensor, y: Tensor, squares: Tensor, chunk_size: int | None) -> float:
    r"""Return $\sum_l \log \sigma_l^2 - 2 \log |\gamma| + \log \sum_l s_l / \sigma_l^2$ of squared norms s."""
    margin = abs(low_margin(margins_of(forward_pass(network, x, chunk_size=chunk_size).logits, y.cpu())))
    spectral = torch.stack([values[-1] for values in squared_singular_values(network, x).values()])
    ratio = (squares / spectral).sum().item()
    if margin == 0 or ratio == 0:
        raise NotMeasurable(
            "The spectral bound needs a margin and weights other than zero; "
            f"the margin is {margin:.3g}, the sum of squared norms over spectral norms {ratio:.3g}."
        )
    return log_products(spectral)["log_product"] - 2 * math.log(margin) + math.log(ratio)


@register_measure(
    "spectral_complexity",
    title="stretching by the weights against the margin",
    needs=("inputs", "labels"),
    units="nats",
    direction="lower",
    aggregation="log of a product and a sum over layers, over the squared margin",
    cost="1 forward pass",
    default=False,
    invariances=EVERYTHING,
    oracle="closed form",
    cross_checks=("robust-generalization-measures",),
    sampling=Sampling("whole", 256, lambda k: 2),
    reference="Bartlett, Foster and Telgarsky 2017 (arXiv:1706.08498), eq. 1.2; Jiang et al. 2020, eq. 30 (orig-main)",
)
def spectral_complexity(
    network: nn.Module, x: Shaped[Tensor, "n ..."], y: Int[Tensor, " n"], *, chunk_size: int | None = None
) -> Estimate:
    r"""Main term of the spectrally normalized margin bound, around the origin; exact.

    .. math:: \log \prod_l \sigma_1(W_l)^2 - 2 \log |\gamma| +
              \log \sum_l \frac{\lVert W_l \rVert_F^2}{\sigma_1(W_l)^2}

    $\gamma$ is the margin $f_y - \max_{j \ne y} f_j$ below which a tenth of the samples lie (the k-th smallest,
    k = n // 10). Matrices and batch norm as in `spectral_norms`. Dziugaite et al. report half of (value - log n).

    Args:
        network: Classifier that returns logits [n, K].
        x: Inputs, the training data.
        y: Class labels.
        chunk_size: Samples per pass, without effect beyond rounding; None for as many as memory allows.

    Returns:
        The logarithm.

    Raises:
        NotMeasurable: The margin or a weight is zero.

    >>> network = nn.Linear(2, 2, bias=False)
    >>> _ = nn.init.eye_(network.weight)
    >>> y = torch.zeros(3).long()
    >>> round(spectral_complexity(network, torch.tensor([[2.0, 1.0]]).repeat(3, 1), y), 6)  # 0 - 0 + log 2
    0.693147
    """
    check_labelled("spectral_complexity", x, y)
    squares = squared_frobenius_norms(layer_weights(network, x))
    return Estimate(log_spectral_bound(network, x, y, squares, chunk_size))
