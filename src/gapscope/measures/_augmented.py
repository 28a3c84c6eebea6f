"""Image augmentations of the 2020 competition's second place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from gapscope.base.errors import NotMeasurable

Images = Float[Tensor, "n c h w"]


def check_images(x: Tensor) -> None:
    """Raise NotMeasurable unless x holds images [n, channels, height, width] of 4 x 4 or more."""
    if x.ndim != 4 or min(x.shape[2:]) < 4 or not x.is_floating_point():
        raise NotMeasurable(
            "Augmentations are those of images, floating-point inputs [n, channels, height, width] of at least 4 x 4 "
            f"pixels; got {x.dtype} of shape {list(x.shape)}."
        )


@dataclass(frozen=True)
class Draws:
    """Random numbers in [0, 1) for every sample.

    Attributes:
        values: Six numbers per sample.
    """

    values: Float[Tensor, "n 6"]

    @classmethod
    def of(cls, n: int, generator: torch.Generator) -> Draws:
        """Sample the numbers of n samples."""
        return cls(torch.rand(n, 6, generator=generator, dtype=torch.float64))

    def __getitem__(self, part: slice) -> Draws:
        return Draws(self.values[part])

    def column(self, index: int, like: Tensor) -> Float[Tensor, "n 1 1 1"]:
        """Return one number per sample, to be broadcast over its image."""
        return self.values[:, index, None, None, None].to(like)


def flipped(x: Images, draws: Draws) -> Images:
    """Flip left and right."""
    return x.flip(3)


def saturated(x: Images, draws: Draws) -> Images:
    """Multiply the HSV saturation by a factor in [0.6, 1.6), clipped (grey images stay)."""
    if x.shape[1] != 3:
        return x
    value, least = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
    saturation = (value - least) / value.clamp_min(1e-12)
    factor = (0.6 + draws.column(0, x)).minimum(1 / saturation.clamp_min(1e-12))
    return value - (value - x) * factor


def cropped(x: Images, draws: Draws) -> Images:
    """Crop the middle 90 % of each side and resize it to the old size."""
    height, width = x.shape[2:]
    top, left = int(0.05 * height), int(0.05 * width)
    middle = x[:, :, top : height - top, left : width - left]
    return F.interpolate(middle, size=(height, width), mode="bilinear", align_corners=False)


def edges(x: Images, draws: Draws) -> Images:
    """Compute Sobel's horizontal derivative over 4, plus a half."""
    kernel = x.new_tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]])
    channels = x.shape[1]
    weights = kernel.expand(channels, 1, 3, 3)
    return F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), weights, groups=channels) / 4 + 0.5


def brightened(x: Images, draws: Draws) -> Images:
    """Add half of the range."""
    return x + 0.5


def flipped_and_saturated(x: Images, draws: Draws) -> Images:
    """Flip left and right, then change the saturation by another factor."""
    return saturated(x.flip(3), Draws(draws.values.roll(-1, 1)))


def erased(x: Images, draws: Draws) -> Images:
    """Set a rectangle to 0, each side between the roots of 0.6 % and 133 % of the area."""
    height, width = x.shape[2:]
    low = round((0.02 * height * width * 0.3) ** 0.5)
    high = round((0.4 * height * width / 0.3) ** 0.5)
    inside = torch.ones(len(x), 1, 1, 1, dtype=torch.bool, device=x.device)
    for dim, size, column in ((2, height, 2), (3, width, 4)):
        span = low + (draws.column(column, x) * max(1, min(high, size) - low)).floor()
        start = (draws.column(column + 1, x) * (size - span).clamp_min(1)).floor()
        shape = [1, 1, 1, 1]
        shape[dim] = size
        at = torch.arange(size, device=x.device).reshape(shape)
        inside = inside & (at >= start) & (at < start + span)
    return x.masked_fill(inside, 0.0)


# transformation -> penalty of a changed prediction
PENALTIES: Mapping[Callable[[Images, Draws], Images], float] = {
    flipped: 6.0,
    saturated: 1.0,
    cropped: 2.0,
    edges: 3.0,
    brightened: 1.0,
    flipped_and_saturated: 12.0,
    erased: 2.0,
}


@dataclass(frozen=True)
class UnitRange:
    """Range of a set of images, mapped to [0, 1] while they are transformed.

    Attributes:
        low: Smallest entry.
        span: Largest minus smallest; 1 if all are equal.
    """

    low: float
    span: float

    @classmethod
    def of(cls, x: Tensor) -> UnitRange:
        """Return the range of all images."""
        low, high = x.min().item(), x.max().item()
        return cls(low, high - low or 1.0)

    def change(self, transform: Callable[[Images, Draws], Images], x: Images, draws: Draws) -> Images:
        """Return the changed images in their own range."""
        return transform((x - self.low) / self.span, draws) * self.span + self.low
