"""Trace of the Hessian of the loss."""

from __future__ import annotations

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from gapscope.base.errors import check_range
from gapscope.measures._krylov import STREAM, krylov
from gapscope.measures.registry import Sampling, register_measure
from gapscope.results.estimate import Estimate


@register_measure(
    "hessian_trace",
    title="summed curvature of the loss",
    needs=("inputs", "targets"),
    units="loss / squared weight units",
    direction="lower",
    aggregation="sum over weights, of the mean loss over samples",
    cost="10 Hessian-vector products, each about 3 forward and backward passes",
    cost_class="many",
    default=False,
    invariances=("unit permutation", "head shift"),
    oracle="dense Hessian",
    cross_checks=("PyHessian",),
    sampling=Sampling("whole", 64, lambda k: 90),
    stream=STREAM,
    reference="Hutchinson 1990, eq. 2.1; Yao et al. 2020 (arXiv:1912.07145), Sec. III-C",
)
def hessian_trace(
    network: nn.Module,
    x: Shaped[Tensor, "n ..."],
    y: Shaped[Tensor, "n ..."],
    *,
    probes: int = 10,
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
) -> Estimate:
    r"""Trace of the Hessian of the mean loss by all trainable weights, by Hutchinson's estimator.

    $\frac1p \sum_k v_k^\top H v_k$ over vectors of random signs: unbiased; the standard error is the spread among
    probes. In evaluation mode; the loss is the mean cross-entropy, or mean squared error for regression.

    Args:
        network: The network.
        x: Inputs, the training data.
        y: Class labels or regression targets.
        probes: Number of random vectors, at least 2.
        generator: Source of the vectors; None for the same at every call.
        chunk_size: Samples per pass, without effect beyond rounding; None for as many as memory allows.

    Returns:
        The trace with its standard error.

    Raises:
        InvalidInput: An option is out of range.
        NotMeasurable: The network has no trainable parameters.

    >>> network = nn.Linear(1, 1, bias=False)  # loss (w x - y)^2: the second derivative is 2 x^2
    >>> hessian_trace(network, torch.tensor([[3.0]]), torch.ones(1, 1))
    18 ± 0
    """
    check_range("probes", probes, 2, 1024)
    spaces = krylov(network, x, y, generator=generator, chunk_size=chunk_size)
    values = [run.diagonal[0] * spaces.hessian.size for run in spaces.runs(probes, 1)]
    traces = torch.tensor(values, dtype=torch.float64)
    return Estimate(traces.mean().item(), traces.std().item() / probes**0.5)
