"""Margins at the first layer of changed images."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Int, Shaped
from torch import Tensor, nn

from gapscope.base.random_streams import resolve_generator
from gapscope.measures._augmented import Draws, UnitRange, check_images, cropped, erased, flipped, saturated
from gapscope.measures._first_layer import first_layer_margin
from gapscope.measures._forward import check_labelled
from gapscope.measures.registry import EVERYTHING, Sampling, register_measure
from gapscope.results.estimate import Estimate


@register_measure(
    "augmentation_margin",
    title="distance of changed images from the class boundary",
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
    stream="augmentation",
    reference="Natekar and Sharma 2020 (arXiv:2012.02775), Sec. 3.2; after Jiang et al. 2019 (arXiv:1810.00113)",
)
def augmentation_margin(
    network: nn.Module,
    x: Shaped[Tensor, "n ..."],
    y: Int[Tensor, " n"],
    *,
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
) -> Estimate:
    r"""Mean margin at the first layer of images that are flipped, saturated, cropped and erased at random.

    .. math:: \frac1n \sum_i \frac{f_y(x_i') - f_j(x_i')}{s \, \lVert \nabla_h (f_y - f_j) \rVert_2}

    h is the output of the first convolution or linear layer, j the class with the largest output other than y, so
    that samples classified wrongly count negative; s is the root of the variance of h over samples, a mean over its
    coordinates without the smallest and the largest twentieth. Each image takes each of the four changes with
    probability one half; saturation by a factor in [0.6, 1.6), the middle 90 %, and a rectangle set to the smallest
    number. The competition's first place changes flip, saturation, crop and brightness. The competition's score has
    the other sign. The standard error is the spread over samples.

    Args:
        network: Classifier that returns logits [n, K].
        x: Images [n, channels, height, width].
        y: Class labels, as they were trained on.
        generator: Source of what is drawn; None for the same at every call.
        chunk_size: Samples per pass, without effect beyond rounding; None for as many as memory allows.

    Returns:
        The mean.

    Raises:
        NotMeasurable: The inputs are no images, there is no first layer, or it does not vary.
    """
    samples = check_labelled("augmentation_margin", x, y)
    check_images(x)
    source = resolve_generator(generator, "augmentation")
    draws, images = Draws.of(len(x), source), UnitRange.of(x)
    taken = torch.rand(len(x), 4, 1, 1, 1, generator=source).to(x.device) < 0.5
    inputs = x.detach()
    for i, transform in enumerate((flipped, saturated, cropped, erased)):
        inputs = torch.where(taken[:, i], images.change(transform, inputs, draws), inputs)
    return first_layer_margin(network, replace(samples, inputs=inputs), chunk_size)
