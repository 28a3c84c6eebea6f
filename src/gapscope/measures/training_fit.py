"""Accuracy and loss on the training samples."""

from __future__ import annotations

from jaxtyping import Int64
from torch import Tensor, nn

from gapscope.base.samples import Samples
from gapscope.inspection.losses import evaluate
from gapscope.inspection.outputs import check_finite
from gapscope.measures._forward import FloatInputs, Targets
from gapscope.measures.registry import Sampling, ScalarInfo, register_measure
from gapscope.results.estimate import Estimate


@register_measure(
    title="fraction of samples classified as labelled",
    labels=True,
    numbers=ScalarInfo("fraction of samples", "none", "mean over samples"),
    cost_class="forward",
    supports_dense=True,
    sampling=Sampling("mean", 256, lambda k: 1),
    reference="",
)
def accuracy(network: nn.Module, x: FloatInputs, y: Int64[Tensor, " n"], *, chunk_size: int | None = None) -> Estimate:
    r"""Compute the accuracy: fraction of samples whose largest output is their label (exact).

    $\frac1n \sum_i 1[\arg\max_c f_c(x_i) = y_i]$. Exact; in evaluation mode. On training samples it is the training
    accuracy against the labels as given.

    >>> import torch
    >>> accuracy(nn.Identity(), torch.eye(4), torch.tensor([0, 1, 2, 0]))
    0.75
    """
    check_finite(network)
    return Estimate(evaluate(network, Samples(x, y), chunk_size=chunk_size)["accuracy"])


@register_measure(
    title="loss on the samples",
    numbers=ScalarInfo(
        "nats (cross-entropy) or squared target units (regression)",
        "none",
        "mean over samples (and outputs, for regression)",
    ),
    cost_class="forward",
    supports_dense=True,
    sampling=Sampling("mean", 256, lambda k: 1),
    reference="",
)
def loss(network: nn.Module, x: FloatInputs, y: Targets, *, chunk_size: int | None = None) -> Estimate:
    r"""Compute the mean cross-entropy, or the mean squared error for regression (exact).

    $-\frac1n \sum_i \log \mathrm{softmax}(f(x_i))_{y_i}$. In evaluation mode; accumulated in float64.

    >>> import torch
    >>> loss(nn.Identity(), torch.zeros(3, 2), torch.tensor([0, 1, 1]))  # log 2
    0.693147
    """
    check_finite(network)
    return Estimate(evaluate(network, Samples(x, y), chunk_size=chunk_size)["loss"])
