"""Margin of the outputs."""

from __future__ import annotations

import math

import torch
from jaxtyping import Int, Shaped
from torch import Tensor, nn

from gapscope.measures._forward import check_labelled, forward_pass, low_margin, margins_of
from gapscope.measures._numbers import Scalars
from gapscope.measures.registry import EVERYTHING, Sampling, ScalarInfo, register_measure


@register_measure(
    "output_margin",
    title="lead of the right class over the next one",
    needs=("inputs", "labels"),
    numbers={
        "percentile_10": ScalarInfo(
            "logits", "higher", "k-th smallest over samples, k = n // 10", "a tenth lies below"
        ),
        "median": ScalarInfo("logits", "higher", "median over samples"),
        "inverse_square": ScalarInfo("1 / squared logits", "lower", "of the 10th percentile"),
    },
    cost="1 forward pass",
    default=False,
    invariances=EVERYTHING,
    oracle="closed form",
    cross_checks=("robust-generalization-measures",),
    sampling=Sampling("whole", 256, lambda k: 2),
    reference="Jiang et al. 2020 (arXiv:1912.02178), eq. 22",
)
def output_margin(
    network: nn.Module, x: Shaped[Tensor, "n ..."], y: Int[Tensor, " n"], *, chunk_size: int | None = None
) -> Scalars:
    r"""Margin $\gamma_i = f_y(x_i) - \max_{j \ne y} f_j(x_i)$: 10th percentile, median, and $1 / \gamma^2$; exact.

    The percentile is the k-th smallest margin, k = n // 10 (at least 1), negative where more than a tenth of the
    samples are classified wrongly; $\gamma$ in $1 / \gamma^2$ is that percentile, so that its sign is lost there.

    Args:
        network: Classifier that returns logits [n, K].
        x: Inputs, the training data.
        y: Class labels.
        chunk_size: Samples per pass, without effect beyond rounding; None for as many as memory allows.

    Returns:
        The numbers "percentile_10", "median" and "inverse_square".

    Raises:
        NotMeasurable: There is one class only.

    >>> found = output_margin(nn.Identity(), torch.tensor([[3.0, 1.0], [1.0, 0.5]]), torch.tensor([0, 0]))
    >>> found["percentile_10"], found["median"], found["inverse_square"]
    (0.5, 1.25, 4.0)
    """
    check_labelled("output_margin", x, y)
    margins = margins_of(forward_pass(network, x, chunk_size=chunk_size).logits, y.cpu())
    low = low_margin(margins)
    inverse = 1 / low**2 if low else math.inf
    return Scalars(
        {
            "percentile_10": low,
            "median": torch.quantile(margins, 0.5).item(),
            "inverse_square": inverse,
        }
    )
