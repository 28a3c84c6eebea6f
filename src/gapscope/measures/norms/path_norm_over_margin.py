"""Path norm over the squared margin."""

from __future__ import annotations

from jaxtyping import Int, Shaped
from torch import Tensor, nn

from gapscope.base.errors import NotMeasurable
from gapscope.measures._forward import check_labelled, forward_pass, low_margin, margins_of
from gapscope.measures._powered import path_sum
from gapscope.measures.registry import Sampling, register_measure
from gapscope.results.estimate import Estimate


@register_measure(
    "path_norm_over_margin",
    title="strength of all paths against the margin",
    needs=("inputs", "labels"),
    units="1 / squared input",
    direction="lower",
    aggregation="sum over paths, over the squared margin",
    cost="1 forward pass",
    default=False,
    invariances=("layer rescaling", "unit permutation"),
    oracle="closed form",
    cross_checks=("robust-generalization-measures",),
    sampling=Sampling("whole", 256, lambda k: 2),
    reference="Jiang et al. 2020 (arXiv:1912.02178), eq. 43; Dziugaite et al. 2020",
)
def path_norm_over_margin(
    network: nn.Module, x: Shaped[Tensor, "n ..."], y: Int[Tensor, " n"], *, chunk_size: int | None = None
) -> Estimate:
    r"""`path_norm` divided by $\gamma^2$; exact.

    $\gamma$ is the margin $f_y - \max_{j \ne y} f_j$ below which a tenth of the samples lie (the k-th smallest,
    k = n // 10).

    Args:
        network: A piecewise linear classifier that returns logits [n, K].
        x: Inputs, the training data.
        y: Class labels.
        chunk_size: Samples per pass, without effect beyond rounding; None for as many as memory allows.

    Returns:
        The ratio.

    Raises:
        NotMeasurable: The margin is zero, or there is no path norm.

    >>> import torch
    >>> network = nn.Linear(2, 2, bias=False)
    >>> _ = nn.init.eye_(network.weight)
    >>> y = torch.zeros(3).long()
    >>> path_norm_over_margin(network, torch.tensor([[3.0, 1.0]]).repeat(3, 1), y)  # 2 / (3 - 1)^2
    0.5
    """
    check_labelled("path_norm_over_margin", x, y)
    margin = low_margin(margins_of(forward_pass(network, x, chunk_size=chunk_size).logits, y.cpu()))
    if margin == 0:
        raise NotMeasurable("A norm over the margin needs a margin other than zero; it is 0. Train the network.")
    return Estimate(path_sum(network, x).item() / margin**2)
