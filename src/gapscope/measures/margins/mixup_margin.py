"""Margins at the first layer of samples mixed within their class."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gapscope.measures._first_layer import first_layer_margin
from gapscope.measures._forward import check_labelled
from gapscope.measures._mixing import STREAM, mixup, same_class_partners
from gapscope.measures._noisy_outputs import continuous_inputs
from gapscope.measures.registry import EVERYTHING, Sampling, register_measure
from gapscope.results.estimate import Estimate


@register_measure(
    "mixup_margin",
    title="distance of mixtures of two samples of a class from the class boundary",
    needs=("inputs", "labels"),
    units="trimmed standard deviations of the first layer's features",
    direction="higher",
    aggregation="mean over samples",
    cost="1 forward and 1 backward pass",
    cost_class="backward",
    default=False,
    invariances=EVERYTHING,
    oracle="distance to a linear boundary",
    cross_checks=("PGDL first place",),
    sampling=Sampling("own", 128, lambda k: 4),
    stream=STREAM,
    reference="Natekar and Sharma 2020 (arXiv:2012.02775), Sec. 3.2; after Jiang et al. 2019 (arXiv:1810.00113)",
)
def mixup_margin(
    network: nn.Module,
    x: Float[Tensor, "n ..."],
    y: Int[Tensor, " n"],
    *,
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
) -> Estimate:
    r"""Mean margin at the first layer of samples mixed half and half with another sample of their class.

    .. math:: \frac1n \sum_i \frac{f_y(x_i') - f_j(x_i')}{s \, \lVert \nabla_h (f_y - f_j) \rVert_2}

    h is the output of the first convolution or linear layer, j the class with the largest output other than y, so
    that samples classified wrongly count negative; s is the root of the variance of h over samples, a mean over its
    coordinates without the smallest and the largest twentieth. Each sample has one partner, and is one once. The
    competition's score has the other sign. The standard error is the spread over samples.

    Args:
        network: Classifier that returns logits [n, K].
        x: Inputs, floating point.
        y: Class labels, as they were trained on.
        generator: Source of what is drawn; None for the same at every call.
        chunk_size: Samples per pass, without effect beyond rounding; None for as many as memory allows.

    Returns:
        The mean.

    Raises:
        InvalidInput: The inputs are token ids.
        NotMeasurable: There is no first layer, or it does not vary.
    """
    samples = check_labelled("mixup_margin", x, y)
    pairs = same_class_partners(y, generator)
    inputs = mixup(continuous_inputs(network, x), pairs, slice(len(x)))
    return first_layer_margin(network, replace(samples, inputs=inputs), chunk_size)
