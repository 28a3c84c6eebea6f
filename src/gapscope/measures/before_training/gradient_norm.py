"""Norm of the gradient of the loss."""

from __future__ import annotations

from jaxtyping import Shaped
from torch import Tensor, nn

from gapscope.measures._gradients import mean_gradient
from gapscope.measures._numbers import Scalars
from gapscope.measures._perturbed import norm_of
from gapscope.measures.registry import Sampling, ScalarInfo, register_measure


@register_measure(
    "gradient_norm",
    title="size of the gradient of the loss",
    needs=("inputs", "targets"),
    numbers={
        "whole": ScalarInfo("loss / weight units", "none", "L2 norm over all trainable parameters"),
        "sum": ScalarInfo("loss / weight units", "none", "sum over matrices of their Frobenius norms"),
    },
    cost="1 forward and 1 backward pass",
    cost_class="backward",
    default=False,
    invariances=("unit permutation", "head shift"),
    oracle="closed form",
    sampling=Sampling("whole", 256, lambda k: 4),
    reference="Abdelfattah et al. 2021 (arXiv:2101.08134), Sec. 3.2 (grad_norm)",
)
def gradient_norm(
    network: nn.Module,
    x: Shaped[Tensor, "n ..."],
    y: Shaped[Tensor, "n ..."],
    *,
    chunk_size: int | None = None,
) -> Scalars:
    r"""Norm of the gradient of the mean loss over all trainable weights, and the sum of the layers' norms; exact.

    The sum is over weights of two or more dimensions, $\sum_l \lVert \nabla_{W_l} L \rVert_F$, as zero-cost proxies
    have it. In evaluation mode. Before training it is a proxy that ranks networks; afterwards it says how near the
    weights are to a stationary point.

    Args:
        network: The network.
        x: Inputs, the training data.
        y: Class labels or regression targets.
        chunk_size: Samples per pass, without effect beyond rounding; None for as many as memory allows.

    Returns:
        The numbers "whole" and "sum".

    Raises:
        NotMeasurable: The network has no trainable parameters.

    >>> import torch
    >>> network = nn.Linear(1, 1, bias=False)  # loss (w x - y)^2, gradient 2 (w x - y) x
    >>> _ = nn.init.zeros_(network.weight)
    >>> gradient_norm(network, torch.tensor([[3.0]]), torch.ones(1, 1)).scalars()
    {'whole': 6.0, 'sum': 6.0}
    """
    gradient = mean_gradient(network, x, y, chunk_size=chunk_size)
    shapes = [parameter.ndim for parameter in network.parameters() if parameter.requires_grad]
    layers = [norm_of([tensor]) for tensor, ndim in zip(gradient, shapes, strict=True) if ndim >= 2]
    return Scalars({"whole": norm_of(gradient), "sum": sum(layers, 0.0)})
