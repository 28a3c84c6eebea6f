r"""Margins of the samples at the outputs and at the first layer.

A margin at the first layer is $\frac{f_y(x') - f_j(x')}{s \, \lVert \nabla_h (f_y - f_j) \rVert_2}$ for a transformed
sample x'. h is the output of the first convolution or linear layer, j the class with the largest output other than y,
so that misclassified samples count negative. s is the root of the mean variance of h over samples, the mean taken over
its coordinates without the smallest and the largest twentieth. The reference's score has the other sign. Standard
errors are the spread over samples. Common parameters: see `gapscope.measures`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from gapscope.base.random_streams import resolve_generator
from gapscope.base.samples import Samples
from gapscope.measures._forward import (
    FloatInputs,
    Inputs,
    Labels,
    Scalars,
    forward_pass,
    low_margin,
    margins_of,
)
from gapscope.measures._noise import STREAM, continuous_inputs, mixup, same_class_partners
from gapscope.measures.path_norms import first_layer_margin
from gapscope.measures.registry import Sampling, ScalarInfo, register_measure
from gapscope.measures.robustness import check_images, cropped, erased, flipped, in_unit_range, saturated, six_draws
from gapscope.results.estimate import Estimate

_register = partial(register_measure, labels=True, default=False, sampling=Sampling("own", 128, lambda k: 4))


@_register(
    title="distance of augmented images from the class boundary",
    numbers=ScalarInfo("trimmed standard deviations of the first layer's features", "higher", "mean over samples"),
    cost_class="backward",
    stream="augmentation",
    reference="Natekar and Sharma 2020 (arXiv:2012.02775), Sec. 3.2; after Jiang et al. 2019 (arXiv:1810.00113)",
)
def augmentation_margin(
    network: nn.Module, x: Inputs, y: Labels, *, generator: torch.Generator | None = None, chunk_size: int | None = None
) -> Estimate:
    """Compute the mean first-layer margin of randomly augmented images (estimated).

    Each image undergoes each of four changes with probability one half: flip, saturation by a factor in [0.6, 1.6),
    crop of the middle 90 %, a rectangle set to the smallest value. The reference has brightness in place of erasing.

    Args:
        x: Images [n, channels, height, width].
    """
    samples = Samples(x, y)
    check_images(x)
    source = resolve_generator(generator, "augmentation")
    draws = six_draws(len(x), source)
    applied = torch.rand(len(x), 4, 1, 1, 1, generator=source).to(x.device) < 0.5
    inputs = x.detach()
    for i, change in enumerate((flipped, saturated, cropped, erased)):
        inputs = torch.where(applied[:, i], in_unit_range(x, change)(inputs, draws), inputs)
    return first_layer_margin(network, replace(samples, inputs=inputs), chunk_size)


@_register(
    title="distance of mixtures of two samples of a class from the class boundary",
    numbers=ScalarInfo("trimmed standard deviations of the first layer's features", "higher", "mean over samples"),
    cost_class="backward",
    stream=STREAM,
    reference="Natekar and Sharma 2020 (arXiv:2012.02775), Sec. 3.2; after Jiang et al. 2019 (arXiv:1810.00113)",
)
def mixup_margin(
    network: nn.Module,
    x: FloatInputs,
    y: Labels,
    *,
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
) -> Estimate:
    """Compute the mean first-layer margin of samples mixed within their class (estimated).

    Samples are averaged half and half; each has one partner and is a partner once.
    """
    samples = Samples(x, y)
    pairs = same_class_partners(y, generator)
    inputs = mixup(continuous_inputs(network, x), pairs, slice(len(x)))
    return first_layer_margin(network, replace(samples, inputs=inputs), chunk_size)


@_register(
    title="margin between the labelled class and the runner-up",
    numbers={
        "percentile_10": ScalarInfo(
            "logits", "higher", "k-th smallest over samples, k = n // 10", "a tenth lies below"
        ),
        "median": ScalarInfo("logits", "higher", "median over samples"),
        "inverse_square": ScalarInfo("1 / squared logits", "lower", "of the 10th percentile"),
    },
    sampling=Sampling("whole", 256, lambda k: 2),
    reference="Jiang et al. 2020 (arXiv:1912.02178), eq. 22",
)
def output_margin(network: nn.Module, x: Inputs, y: Labels, *, chunk_size: int | None = None) -> Scalars:
    r"""Compute the output margins: low percentile, median, inverse square (exact).

    The margin of a sample is $f_y - \max_{j \ne y} f_j$. "percentile_10" is the k-th smallest margin, k = n // 10 (at
    least 1), negative if more than a tenth of the samples are misclassified. "inverse_square" is $1 / \gamma^2$ of that
    percentile, which loses its sign.
    """
    margins = margins_of(forward_pass(network, x, chunk_size=chunk_size).logits, y.cpu())
    low, median = low_margin(margins), torch.quantile(margins, 0.5).item()
    return Scalars({"percentile_10": low, "median": median, "inverse_square": 1 / low**2 if low else math.inf})
