"""Motion blur of images as in MNIST-C."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from gapscope.base.errors import InvalidInput, check_range
from gapscope.base.random_streams import resolve_generator
from gapscope.base.samples import slices

SEVERITIES = ((10, 3.0), (15, 5.0), (15, 8.0), (15, 12.0), (20, 15.0))
_LARGEST_ANGLE = 45.0
_FULL_SIDE = 28
_CHUNK = 1000


def blur_settings(severity: int, side: int) -> tuple[int, float]:
    """Return (radius, sigma) in pixels for images whose shorter side has `side` pixels.

    From 28 pixels up these are MNIST-C's values. In smaller images both shrink by side / 28, and the radius is at
    most (side - 1) // 2, so that no step of the motion leaves the image: 8 x 8 digits get radius 3 at every severity
    and differ in sigma.

    Raises:
        InvalidInput: severity is not in 1 to 5.

    >>> blur_settings(1, 28), blur_settings(1, 14), blur_settings(5, 8)[0]
    ((10, 3.0), (5, 1.5), 3)
    """
    check_range("severity of motion_blur", severity, 1, len(SEVERITIES))
    radius, sigma = SEVERITIES[severity - 1]
    if side >= _FULL_SIDE:
        return radius, sigma
    return min(round(radius * side / _FULL_SIDE), (side - 1) // 2), sigma * side / _FULL_SIDE


def _kernel(radius: int, sigma: float) -> list[float]:
    weights = [math.exp(-(i**2) / (2 * sigma**2)) for i in range(2 * radius + 1)]
    return [weight / sum(weights) for weight in weights]


def _runs(shifts: Tensor) -> list[tuple[int, int, int, int]]:
    """Return runs of images with the same shift, as (first, past the last, down, right)."""
    values, counts = torch.unique_consecutive(shifts, dim=0, return_counts=True)
    ends = counts.cumsum(0)
    return [
        (end - count, end, down, right)
        for (down, right), count, end in zip(values.tolist(), counts.tolist(), ends.tolist(), strict=True)
    ]


def _blurred(images: Tensor, angles: Tensor, kernel: list[float]) -> Tensor:
    """Blur images sorted by angle (radians), so that equal shifts are adjacent in memory."""
    height, width = images.shape[-2:]
    margin_y, margin_x = min(len(kernel), height), min(len(kernel), width)
    padded = functional.pad(images, (margin_x, margin_x, margin_y, margin_y), mode="replicate")
    total = torch.zeros_like(images)
    for i, weight in enumerate(kernel):
        down = -torch.ceil(i * angles.sin() - 0.5).long()
        right = -torch.ceil(i * angles.cos() - 0.5).long()
        for first, last, dy, dx in _runs(torch.stack((down, right), 1)):
            if abs(dy) >= height or abs(dx) >= width:
                continue
            top, left = margin_y - dy, margin_x - dx
            total[first:last].add_(padded[first:last, :, top : top + height, left : left + width], alpha=weight)
    return total


def motion_blur(
    images: Float[Tensor, "n c h w"], severity: int = 1, generator: torch.Generator | None = None
) -> Float[Tensor, "n c h w"]:
    r"""Return the images blurred by a motion in a random direction per image, as in MNIST-C.

    With radius r and sigma of the severity, (10, 3), (15, 5), (15, 8), (15, 12) and (20, 15),

    $$x'(p) = \mathrm{clip}_{[0, 1]} \sum_{i=0}^{2 r} k_i\, x(p - s_i), \quad
      k_i \propto e^{-i^2 / (2 \sigma^2)}, \ \sum_i k_i = 1, \quad
      s_i = -\lceil (i \sin a - 1/2,\ i \cos a - 1/2) \rceil$$

    with (down, right) shifts of whole pixels, pixels outside the image replaced by the nearest inside, and
    a ~ U(-45, 45) degrees. Steps whose shift leaves the image are omitted with their weight, so strong blur also
    darkens small images. Images smaller than 28 pixels get a smaller kernel, see `blur_settings`. Exact up to
    float32 rounding.

    Args:
        images: Images in [0, 1].
        severity: 1 (the default of MNIST-C) to 5.

    Raises:
        InvalidInput: severity is not in 1 to 5, or these are no images.

    Reference: Mu & Gilmer 2019, "MNIST-C: A Robustness Benchmark for Computer Vision", motion blur.

    >>> bool(torch.isclose(motion_blur(torch.full((2, 1, 28, 28), 0.5)), torch.tensor(0.5)).all())
    True
    """
    if images.ndim != 4 or not images.is_floating_point():
        raise InvalidInput(
            f"Motion blur needs images, a float tensor of shape [n, channels, height, width]; got {images.dtype} "
            f"of shape {list(images.shape)}."
        )
    kernel = _kernel(*blur_settings(severity, min(images.shape[-2:])))
    generator = resolve_generator(generator, "motion blur")
    turns = 2 * torch.rand(len(images), generator=generator, dtype=torch.float64) - 1
    angles = turns * math.radians(_LARGEST_ANGLE)
    order = angles.argsort()
    blurred = torch.empty_like(images)
    for part in slices(len(images), _CHUNK):
        chosen = order[part]
        blurred[chosen] = _blurred(images[chosen], angles[chosen], kernel).clamp_(0, 1)
    return blurred
