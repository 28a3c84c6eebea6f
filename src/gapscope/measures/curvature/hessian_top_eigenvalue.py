"""Largest eigenvalue of the Hessian of the loss."""

from __future__ import annotations

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from gapscope.base.errors import check_range
from gapscope.measures._krylov import STREAM, krylov
from gapscope.measures.registry import Sampling, register_measure
from gapscope.results.estimate import Estimate


@register_measure(
    "hessian_top_eigenvalue",
    title="strongest curvature of the loss",
    needs=("inputs", "targets"),
    units="loss / squared weight units",
    direction="lower",
    aggregation="of the mean loss over samples",
    cost="up to 30 Hessian-vector products, each about 3 forward and backward passes",
    cost_class="many",
    default=False,
    invariances=("unit permutation", "head shift"),
    oracle="dense Hessian",
    cross_checks=("PyHessian",),
    sampling=Sampling("whole", 64, lambda k: 250),
    stream=STREAM,
    reference="Lanczos 1950; Yao et al. 2020 (arXiv:1912.07145), Sec. III-B",
)
def hessian_top_eigenvalue(
    network: nn.Module,
    x: Shaped[Tensor, "n ..."],
    y: Shaped[Tensor, "n ..."],
    *,
    steps: int = 30,
    tolerance: float = 1e-4,
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
) -> Estimate:
    r"""Largest eigenvalue of the Hessian of the mean loss by all trainable weights, in evaluation mode.

    By Lanczos from a random vector: the largest Ritz value after at most `steps` products with the Hessian, or when it
    changes by less than `tolerance` of itself. It approaches the eigenvalue from below, faster than power iteration,
    and finds the largest one, not the largest in magnitude. The loss is the mean cross-entropy, or mean squared error
    for regression. Memory: one vector as large as the weights a step.

    Args:
        network: The network.
        x: Inputs, the training data.
        y: Class labels or regression targets.
        steps: Products with the Hessian, at the most.
        tolerance: Relative change at which it ends.
        generator: Source of the first vector; None for the same at every call.
        chunk_size: Samples per pass, without effect beyond rounding; None for as many as memory allows.

    Returns:
        The eigenvalue.

    Raises:
        InvalidInput: An option is out of range.
        NotMeasurable: The network has no trainable parameters.

    >>> network = nn.Linear(2, 1, bias=False)  # loss mean (w x - y)^2: Hessian 2 x x^T
    >>> round(hessian_top_eigenvalue(network, torch.tensor([[3.0, 4.0]]), torch.ones(1, 1)), 4)
    50.0
    """
    check_range("steps", steps, 1)
    spaces, before = krylov(network, x, y, generator=generator, chunk_size=chunk_size), 0.0
    for step in range(1, steps + 1):
        (run,) = spaces.runs(1, step)
        largest = run.quadrature(step)[0][-1].item()
        if step > 1 and abs(largest - before) <= tolerance * abs(largest):
            break
        before = largest
    return Estimate(largest)
