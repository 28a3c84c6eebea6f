"""Robustness of predictions to augmented inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from gapscope.base.errors import NotMeasurable
from gapscope.base.random_streams import resolve_generator
from gapscope.base.samples import slices
from gapscope.base.task import class_logits
from gapscope.inspection.outputs import (
    checked_outputs,
    measurement_mode,
    prepare_inputs,
    samples_per_pass,
)
from gapscope.measures._forward import (
    FloatInputs,
    Inputs,
    Labels,
    Scalars,
    forward_pass,
    mean_with_error,
)
from gapscope.measures._noise import STREAM, mixed_logits
from gapscope.measures.registry import Sampling, ScalarInfo, register_measure

Images = Float[Tensor, "n c h w"]
# six random numbers in [0, 1) per sample
Draws = Float[Tensor, "n 6"]
Transformation = Callable[[Images, Draws], Images]


def _check_images(x: Tensor) -> None:
    """Raise NotMeasurable unless x holds images [n, channels, height, width] of 4 x 4 or more."""
    if x.ndim != 4 or min(x.shape[2:]) < 4 or not x.is_floating_point():
        raise NotMeasurable(
            f"Got inputs of {x.dtype} with shape {list(x.shape)}; augmentations need floating-point images "
            "[n, channels, height, width] of at least 4 x 4 pixels."
        )


def _column(draws: Draws, index: int, like: Tensor) -> Float[Tensor, "n 1 1 1"]:
    """Return one number per sample, to be broadcast over its image."""
    return draws[:, index, None, None, None].to(like)


def flip(x: Images, draws: Draws) -> Images:
    """Flip left and right."""
    return x.flip(3)


def change_saturation(x: Images, draws: Draws) -> Images:
    """Multiply the HSV saturation by a factor in [0.6, 1.6), clipped (grey stays grey)."""
    if x.shape[1] != 3:
        return x
    # HSV: value is the largest channel, saturation the range of the channels relative to it
    value = x.amax(1, keepdim=True)
    lowest = x.amin(1, keepdim=True)
    saturation = (value - lowest) / value.clamp_min(1e-12)
    factor = (0.6 + _column(draws, 0, x)).minimum(1 / saturation.clamp_min(1e-12))
    return value - (value - x) * factor


def crop(x: Images, draws: Draws) -> Images:
    """Crop the middle 90 % of each side and resize it to the original size."""
    height, width = x.shape[2:]
    top = int(0.05 * height)
    left = int(0.05 * width)
    middle = x[:, :, top : height - top, left : width - left]
    return F.interpolate(middle, size=(height, width), mode="bilinear", align_corners=False)


def detect_edges(x: Images, draws: Draws) -> Images:
    """Compute the horizontal Sobel derivative over 4, plus a half."""
    kernel = x.new_tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]])
    channels = x.shape[1]
    weights = kernel.expand(channels, 1, 3, 3)
    return F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), weights, groups=channels) / 4 + 0.5


def brighten(x: Images, draws: Draws) -> Images:
    """Add half of the range."""
    return x + 0.5


def flip_and_change_saturation(x: Images, draws: Draws) -> Images:
    """Flip left and right, then change the saturation by another factor."""
    return change_saturation(x.flip(3), draws.roll(-1, 1))


def erase(x: Images, draws: Draws) -> Images:
    """Set a rectangle to 0, with sides between the roots of 0.6 % and 133 % of the area."""
    height, width = x.shape[2:]
    # areas of 2 to 40 % and aspect ratios of 0.3 to 1 / 0.3
    low = round((0.02 * height * width * 0.3) ** 0.5)
    high = round((0.4 * height * width / 0.3) ** 0.5)
    inside = torch.ones(len(x), 1, 1, 1, dtype=torch.bool, device=x.device)
    for dim, size, column in ((2, height, 2), (3, width, 4)):
        span = low + (_column(draws, column, x) * max(1, min(high, size) - low)).floor()
        start = (_column(draws, column + 1, x) * (size - span).clamp_min(1)).floor()
        shape = [1, 1, 1, 1]
        shape[dim] = size
        at = torch.arange(size, device=x.device).reshape(shape)
        inside = inside & (at >= start) & (at < start + span)
    return x.masked_fill(inside, 0.0)


# transformation -> penalty of a changed prediction
PENALTIES: Mapping[Transformation, float] = {
    flip: 6.0,
    change_saturation: 1.0,
    crop: 2.0,
    detect_edges: 3.0,
    brighten: 1.0,
    flip_and_change_saturation: 12.0,
    erase: 2.0,
}


def in_unit_range(images: Images, change: Transformation) -> Transformation:
    """Return a transformation that maps the range of all images to [0, 1] and back."""
    low = images.min().item()
    span = images.max().item() - low or 1.0
    return lambda x, draws: change((x - low) / span, draws) * span + low


_register = partial(register_measure, default=False)


@_register(
    title="accuracy and loss on mixtures of two samples of a class",
    labels=True,
    numbers={
        "accuracy": ScalarInfo("fraction of samples", "higher", "mean over samples"),
        "loss": ScalarInfo("nats", "lower", "mean over samples"),
    },
    sampling=Sampling("own", 128, lambda k: 1),
    stream=STREAM,
    reference="Natekar and Sharma 2020 (arXiv:2012.02775), Sec. 3.3",
)
def mixup_robustness(
    network: nn.Module,
    x: FloatInputs,
    y: Labels,
    *,
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
) -> Scalars:
    """Compute accuracy and cross-entropy on samples mixed within their class (estimated).

    Each sample is averaged with one partner, and is the partner of one sample. The reference mixes all pairs of a class
    within a batch.
    """
    logits = mixed_logits(network, x, y, generator, chunk_size)
    correct = (logits.argmax(1) == y.cpu()).double()
    losses = F.cross_entropy(logits, y.cpu(), reduction="none")
    return Scalars({"accuracy": mean_with_error(correct), "loss": mean_with_error(losses)})


@_register(
    title="change of the predictions under augmentation",
    numbers={
        "penalty": ScalarInfo(
            "weighted changes", "lower", "sum over 7 transformations, mean over samples"
        ),
        "agreement": ScalarInfo(
            "fraction of predictions", "higher", "mean over samples and transformations"
        ),
    },
    sampling=Sampling("own", 128, lambda k: 8),
    stream="augmentation",
    reference="Aithal K, Kashyap and Subramanyam 2021 (arXiv:2101.06459), Sec. 3",
)
def augmentation_robustness(
    network: nn.Module,
    x: Inputs,
    *,
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
) -> Scalars:
    """Compute the penalized change of predictions under seven augmentations (estimated).

    For each sample and transformation the penalty is $|p - p'|$, the change of the largest probability, if the
    predicted class does not change; else horizontal flip 6, saturation 1, central crop 2, Sobel edges 3, brightness 1,
    flip and saturation 12, random erasing 2. Their sum is at most 27. Labels are not used. The range of all images is
    mapped to [0, 1] for the transformations. The score of the reference is minus the sum over samples.

    Args:
        network: Network that returns raw outputs [n, K]; logits if labels are needed.
        x: Images [n, channels, height, width].
        generator: Source of random numbers; None for the same numbers in every call.
        chunk_size: Samples per pass, without effect beyond rounding; None: as many as memory allows, up to a maximum.
    """
    _check_images(x)
    before = forward_pass(network, x, chunk_size=chunk_size).logits.softmax(1).max(1)
    draws = torch.rand(
        len(x), 6, generator=resolve_generator(generator, "augmentation"), dtype=torch.float64
    )
    changes = [(in_unit_range(x, change), penalty) for change, penalty in PENALTIES.items()]
    penalties = []
    agreements = []
    with measurement_mode(network) as network, torch.no_grad():
        x = prepare_inputs(network, x)
        for part in slices(len(x), samples_per_pass(network, x, chunk_size)):
            total, agreement = torch.zeros(2, part.stop - part.start, dtype=torch.float64)
            for change, penalty in changes:
                outputs = checked_outputs(network(change(x[part], draws[part])), len(total))
                after = class_logits(outputs.double().cpu()).softmax(1).max(1)
                agrees = after.indices == before.indices[part]
                total += torch.where(agrees, (after.values - before.values[part]).abs(), penalty)
                agreement += agrees
            penalties.append(total)
            agreements.append(agreement / len(PENALTIES))
    return Scalars(
        {
            "penalty": mean_with_error(torch.cat(penalties)),
            "agreement": mean_with_error(torch.cat(agreements)),
        }
    )
