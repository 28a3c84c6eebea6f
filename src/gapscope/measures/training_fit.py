"""Accuracy, loss and output margins on the training samples."""

from __future__ import annotations

import math

import torch
from torch import nn

from gapscope.base.samples import Samples
from gapscope.base.task import KINDS
from gapscope.inspection.losses import evaluate
from gapscope.inspection.network_checks import check_finite
from gapscope.measures._forward import (
    FloatInputs,
    Inputs,
    Labels,
    Scalars,
    Targets,
    forward_pass,
    low_margin,
    margins_of,
)
from gapscope.measures.registry import LOSS_UNIT, Sampling, ScalarInfo, register_measure
from gapscope.results.estimate import Estimate


@register_measure(
    title="fraction of correctly classified samples",
    labels=True,
    numbers=ScalarInfo("fraction of samples", "none", "mean over samples"),
    cost_class="forward",
    tasks=("classification", "multi-label", "positions"),
    sampling=Sampling("mean", 256, lambda k: 1),
    reference="",
)
def accuracy(
    network: nn.Module, x: FloatInputs, y: Targets, *, chunk_size: int | None = None
) -> Estimate:
    r"""Compute the accuracy: fraction of samples whose largest output is their label (exact).

    $\frac1n \sum_i 1[\arg\max_c f_c(x_i) = y_i]$. On training samples it is the training accuracy with the labels in
    the data, errors included.

    >>> import torch
    >>> accuracy(nn.Identity(), torch.eye(4), torch.tensor([0, 1, 2, 0]))
    0.75
    """
    check_finite(network)
    return Estimate(evaluate(network, Samples(x, y, notes=()), chunk_size=chunk_size)["accuracy"])


@register_measure(
    title="mean loss on the samples",
    numbers=ScalarInfo(
        LOSS_UNIT,
        "none",
        "mean over samples (and outputs, for regression)",
    ),
    cost_class="forward",
    tasks=KINDS,
    sampling=Sampling("mean", 256, lambda k: 1),
    reference="",
)
def loss(
    network: nn.Module, x: FloatInputs, y: Targets, *, chunk_size: int | None = None
) -> Estimate:
    r"""Compute the mean cross-entropy, or the mean squared error for regression (exact).

    $-\frac1n \sum_i \log \mathrm{softmax}(f(x_i))_{y_i}$, accumulated in float64.

    >>> import torch
    >>> loss(nn.Identity(), torch.zeros(3, 2), torch.tensor([0, 1, 1]))  # log 2
    0.693147
    """
    check_finite(network)
    return Estimate(evaluate(network, Samples(x, y, notes=()), chunk_size=chunk_size)["loss"])


@register_measure(
    title="margin between the labelled class and the runner-up",
    numbers={
        "percentile_10": ScalarInfo(
            "logits", "higher", "k-th smallest over samples, k = n // 10", "tenth percentile"
        ),
        "median": ScalarInfo("logits", "higher", "median over samples"),
        "inverse_square": ScalarInfo("1 / squared logits", "lower", "of the 10th percentile"),
    },
    labels=True,
    default=False,
    sampling=Sampling("whole", 256, lambda k: 2),
    reference="Jiang et al. 2020 (arXiv:1912.02178), eq. 22",
)
def output_margin(
    network: nn.Module, x: Inputs, y: Labels, *, chunk_size: int | None = None
) -> Scalars:
    r"""Compute output margins: low percentile, median, inverse square (exact).

    The margin of a sample is $f_y - \max_{j \ne y} f_j$. "percentile_10" is the k-th smallest margin, k = n // 10 (at
    least 1), negative if more than a tenth of the samples are misclassified. "inverse_square" is $1 / \gamma^2$ of that
    percentile, without its sign.
    """
    margins = margins_of(forward_pass(network, x, chunk_size=chunk_size).logits, y.cpu())
    low = low_margin(margins)
    median = torch.quantile(margins, 0.5).item()
    return Scalars(
        {"percentile_10": low, "median": median, "inverse_square": 1 / low**2 if low else math.inf}
    )
