"""Trace of the empirical Fisher information."""

from __future__ import annotations

from jaxtyping import Shaped
from torch import Tensor, nn

from gapscope.base.estimate import Estimate
from gapscope.measures._gradients import sample_square_norms
from gapscope.measures.registry import Sampling, register_measure


@register_measure(
    "fisher_trace",
    title="size of the gradients of the single samples' losses",
    needs=("inputs", "targets"),
    units="squared loss / squared weight units",
    direction="lower",
    aggregation="mean over samples, sum over weights",
    cost="1 forward pass and 2 backward passes",
    cost_class="backward",
    by_default=False,
    unchanged_by=("unit permutation", "head shift"),
    oracle="dense per-sample gradients",
    sampling=Sampling("mean", 64, lambda k: 6),
    reference="Jastrzebski et al. 2021 (arXiv:2012.14193), eq. 1, with the labels given",
)
def fisher_trace(
    network: nn.Module,
    x: Shaped[Tensor, "n ..."],
    y: Shaped[Tensor, "n ..."],
    *,
    chunk_size: int | None = None,
) -> Estimate:
    r"""Trace of the empirical Fisher information, $\frac1n \sum_i \lVert \nabla_\theta \ell_i \rVert^2$; exact.

    Over all trainable weights, with the targets given (not drawn from the prediction), in evaluation mode. No gradient
    of a single sample is formed.

    Args:
        network: The network.
        x: Inputs, the training data.
        y: Class labels or regression targets.
        chunk_size: Samples a pass, without effect beyond rounding; None for as many as memory allows.

    Returns:
        The trace.

    Raises:
        NotMeasurable: The network has no trainable parameters.

    >>> import torch
    >>> network = nn.Linear(1, 1, bias=False)  # loss (w x - y)^2, gradient 2 (w x - y) x
    >>> _ = nn.init.zeros_(network.weight)
    >>> fisher_trace(network, torch.tensor([[1.0], [2.0]]), torch.ones(2, 1))  # (4 + 16) / 2
    10
    """
    return Estimate(sample_square_norms(network, x, y, chunk_size=chunk_size).mean().item())
