"""Random changes of training images that keep their class, resampled for every batch."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from gapscope.base.errors import InvalidInput
from gapscope.base.random_streams import resolve_generator

LARGEST_ANGLE = 15.0
LARGEST_SHIFT = 0.1


def flip_shift_rotate(
    images: Float[Tensor, "n c h w"], *, generator: torch.Generator | None = None
) -> Float[Tensor, "n c h w"]:
    """Flip, rotate (up to 15 degrees) and shift (up to a tenth) each image at random.

    Angle and both shifts are uniform; pixels are interpolated linearly, and those outside take the colour of the
    nearest edge. These are the settings of the program of Zhao, Zhang, Hu 2022. Training passes torch's global
    generator, `torch.default_generator`, under a seed of its own.

    Raises:
        InvalidInput: These are no images.

    >>> torch.allclose(flip_shift_rotate(torch.ones(2, 1, 4, 4)), torch.ones(2, 1, 4, 4))
    True
    """
    if images.ndim != 4:
        raise InvalidInput(
            f"Augmentation needs images [n, channels, height, width]; got {list(images.shape)}. Set it to 'none'."
        )
    n, _, height, width = images.shape
    flip, angle, across, down = torch.rand(4, n, generator=resolve_generator(generator, "augmentation"))
    mirror = torch.where(flip < 0.5, -1.0, 1.0)
    angle = math.radians(LARGEST_ANGLE) * (2 * angle - 1)
    cosine, sine = angle.cos(), angle.sin()
    # grid_sample measures both sides from -1 to 1: a rotation keeps angles only with the ratio of the sides
    ratio = height / width
    rows = [
        torch.stack([mirror * cosine, -sine * ratio, 2 * LARGEST_SHIFT * (2 * across - 1)], 1),
        torch.stack([mirror * sine / ratio, cosine, 2 * LARGEST_SHIFT * (2 * down - 1)], 1),
    ]
    maps = torch.stack(rows, 1).to(images.device, images.dtype)
    grid = functional.affine_grid(maps, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
