"""Noise of the gradient at the end of training."""

from __future__ import annotations

from jaxtyping import Shaped
from torch import Tensor, nn

from gapscope.measures._gradients import mean_gradient, sample_square_norms
from gapscope.measures._perturbed import norm_of
from gapscope.measures.registry import Sampling, register_measure
from gapscope.results.estimate import Estimate


@register_measure(
    "gradient_noise",
    title="disagreement of the individual samples' gradients",
    needs=("inputs", "targets"),
    units="squared loss / squared weight units",
    direction="lower",
    aggregation="variance over samples, sum over weights",
    cost="2 forward and 3 backward passes",
    cost_class="backward",
    default=False,
    invariances=("unit permutation", "head shift"),
    oracle="dense per-sample gradients",
    sampling=Sampling("whole", 64, lambda k: 10),
    reference="Jiang et al. 2020 (arXiv:1912.02178), gradient noise at the end of training",
)
def gradient_noise(
    network: nn.Module,
    x: Shaped[Tensor, "n ..."],
    y: Shaped[Tensor, "n ..."],
    *,
    chunk_size: int | None = None,
) -> Estimate:
    r"""Variance of the gradients of individual samples, $\frac1n \sum_i \lVert \nabla \ell_i - \nabla L \rVert^2$; exact.

    Over all trainable weights, at the weights as they are, in evaluation mode. The gradient of a batch of B samples,
    drawn with replacement, has this divided by B (in the reference, at the end of training).

    Args:
        network: The network.
        x: Inputs, the training data.
        y: Class labels or regression targets.
        chunk_size: Samples per pass, without effect beyond rounding; None for as many as memory allows.

    Returns:
        The variance (trace of the covariance).

    Raises:
        NotMeasurable: The network has no trainable parameters.

    >>> import torch
    >>> network = nn.Linear(1, 1, bias=False)  # gradients 2 (w x - y) x: -2 and -4
    >>> _ = nn.init.zeros_(network.weight)
    >>> gradient_noise(network, torch.tensor([[1.0], [2.0]]), torch.ones(2, 1))
    1
    """
    squares = sample_square_norms(network, x, y, chunk_size=chunk_size).mean().item()
    return Estimate(max(0.0, squares - norm_of(mean_gradient(network, x, y, chunk_size=chunk_size)) ** 2))
