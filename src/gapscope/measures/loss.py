"""Mean loss."""

from __future__ import annotations

from torch import nn

from gapscope.base.samples import Samples
from gapscope.inspection.checks import check_finite
from gapscope.inspection.losses import evaluate
from gapscope.measures._types import FloatInputs, Targets
from gapscope.measures.registry import EVERYTHING, Sampling, register_measure
from gapscope.results.estimate import Estimate


@register_measure(
    "loss",
    title="loss on the samples",
    needs=("inputs", "targets"),
    units="nats (cross-entropy) or squared target units (regression)",
    direction="none",
    aggregation="mean over samples (and outputs, for regression)",
    cost="1 forward pass",
    supports_dense=True,
    reference="",
    cost_class="forward",
    invariances=EVERYTHING,
    oracle="closed form",
    sampling=Sampling("mean", 256, lambda k: 1),
)
def loss(network: nn.Module, x: FloatInputs, y: Targets, *, chunk_size: int | None = None) -> Estimate:
    r"""Compute the mean cross-entropy, or the mean squared error for regression (exact).

    $-\frac1n \sum_i \log \mathrm{softmax}(f(x_i))_{y_i}$. In evaluation mode; accumulated in float64.

    Raises:
        InvalidInput: Inputs, targets and outputs do not fit together.

    >>> import torch
    >>> loss(nn.Identity(), torch.zeros(3, 2), torch.tensor([0, 1, 1]))  # log 2
    0.693147
    """
    check_finite(network)
    return Estimate(evaluate(network, Samples(x, y), chunk_size=chunk_size)["loss"])
