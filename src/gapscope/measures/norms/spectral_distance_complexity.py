"""Spectrally normalized margin bound, around the initial weights."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Int, Shaped
from torch import Tensor, nn

from gapscope.measures._forward import check_labelled
from gapscope.measures._weights import layer_weights
from gapscope.measures.norms.spectral_complexity import log_spectral_bound
from gapscope.measures.registry import Sampling, register_measure
from gapscope.results.estimate import Estimate


@register_measure(
    "spectral_distance_complexity",
    title="stretching by the weights, and how far they moved, against the margin",
    needs=("inputs", "labels", "initial"),
    units="nats",
    direction="lower",
    aggregation="log of a product and a sum over layers, over the squared margin",
    cost="1 forward pass",
    default=False,
    invariances=("head shift",),
    oracle="closed form",
    cross_checks=("robust-generalization-measures",),
    sampling=Sampling("whole", 256, lambda k: 2),
    reference="Bartlett, Foster and Telgarsky 2017 (arXiv:1706.08498), eq. 1.2; Jiang et al. 2020, eq. 29 (init-main)",
)
def spectral_distance_complexity(
    network: nn.Module,
    x: Shaped[Tensor, "n ..."],
    y: Int[Tensor, " n"],
    *,
    initial_state: Mapping[str, Tensor],
    chunk_size: int | None = None,
) -> Estimate:
    r"""Main term of the spectrally normalized margin bound, around the initial weights; exact.

    .. math:: \log \prod_l \sigma_1(W_l)^2 - 2 \log |\gamma| +
              \log \sum_l \frac{\lVert W_l - W_l^0 \rVert_F^2}{\sigma_1(W_l)^2}

    As `spectral_complexity`, with the distance from the initial weights in place of the norm; batch norm is folded
    into both.

    Args:
        network: Classifier that returns logits [n, K].
        x: Inputs, the training data.
        y: Class labels.
        initial_state: Its state dictionary before training.
        chunk_size: Samples per pass, without effect beyond rounding; None for as many as memory allows.

    Returns:
        The logarithm.

    Raises:
        NotMeasurable: The margin is zero, or no weight has moved.
        InvalidInput: `initial_state` is of another network.

    >>> network = nn.Linear(2, 2, bias=False)
    >>> _ = nn.init.eye_(network.weight)
    >>> x, y = torch.tensor([[2.0, 1.0]]).repeat(3, 1), torch.zeros(3).long()
    >>> initial = {"weight": torch.tensor([[0.0, 0.0], [0.0, 1.0]])}
    >>> spectral_distance_complexity(network, x, y, initial_state=initial)  # 0 - 0 + log 1
    0
    """
    check_labelled("spectral_distance_complexity", x, y)
    moved = [layer.difference.square().sum().cpu() for layer in layer_weights(network, x, initial_state)]
    return Estimate(log_spectral_bound(network, x, y, torch.stack(moved), chunk_size))
