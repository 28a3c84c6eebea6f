"""Corruptions of labels, targets and images, and augmentation."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional

from gapscope.base.arguments import check_arguments
from gapscope.base.errors import InvalidInput, check_range
from gapscope.base.random_streams import resolve_generator
from gapscope.base.samples import Samples, slices
from gapscope.base.targets import check_labels, require_labels


@check_arguments
def inject_label_noise(
    labels: Int64[Tensor, " n"],
    rate: float,
    n_classes: int,
    generator: torch.Generator | None = None,
    *,
    may_keep_class: bool = False,
) -> Int64[Tensor, " n"]:
    """Return the labels with exactly round(rate * n) of them resampled uniformly.

    With the same generator state, a larger rate replaces the same labels by the same classes, and further ones.
    `round` is Python's: halves are rounded to even numbers.

    Args:
        labels: Data to corrupt; functions return new tensors.
        rate: Fraction of labels to replace, 0 to 1.
        n_classes: Number of classes.
        generator: Source of random numbers; None for the same ones at every call.
        may_keep_class: Whether a label may be replaced by itself. If not (the default), every replaced label is
            wrong, uniformly among the other classes; else it is correct with probability 1 / n_classes.

    Raises:
        InvalidInput: A label is not below n_classes.

    >>> noisy = inject_label_noise(torch.zeros(10, dtype=torch.int64), 0.3, 5)
    >>> int((noisy != 0).sum())
    3
    """
    check_range("rate of label_noise", rate, 0, 1)
    check_range("n_classes of label_noise", n_classes, 2)
    check_labels(labels, n_classes)
    generator = resolve_generator(generator, "label noise")
    n = len(labels)
    indices = torch.randperm(n, generator=generator)[: round(rate * n)]
    # one step per label, replaced or not, so that a larger rate does not change the steps
    steps = torch.randint(0 if may_keep_class else 1, n_classes, (n,), generator=generator)
    noisy = labels.clone()
    noisy[indices] = (labels[indices] + steps[indices].to(labels.device)) % n_classes
    return noisy


@check_arguments
def add_target_noise(
    targets: Float[Tensor, "n k"], std: float, generator: torch.Generator | None = None
) -> Float[Tensor, "n k"]:
    """Return regression targets plus Gaussian noise of standard deviation `std`.

    Args:
        targets: Regression targets, which are not changed.
        std: Standard deviation of the noise in units of the targets, 0 or larger.
        generator: Source of random numbers; None for the same ones at every call.
    """
    check_range("std of target_noise", std, 0)
    noise = torch.randn(
        targets.shape, generator=resolve_generator(generator, "target noise"), dtype=targets.dtype
    )
    return targets + std * noise.to(targets.device)


def subset(samples: Samples, n: int, generator: torch.Generator | None = None) -> Samples:
    """Return n samples without replacement, in random order.

    With the same generator state, a larger n begins with the same samples.

    Args:
        samples: All samples.
        n: Number of samples to return, 1 to all.
        generator: Source of random numbers; None for the same ones at every call.
    """
    check_range("n of subset", n, 1, len(samples))
    return samples.subset(
        torch.randperm(len(samples), generator=resolve_generator(generator, "training subset"))[:n]
    )


def balanced_subset(
    samples: Samples, n: int, n_classes: int, generator: torch.Generator | None = None
) -> Samples:
    """Sample n indices without replacement, equally many per class, in random order.

    Args:
        samples: All samples, with class labels.
        n: Number of samples to return, a multiple of the number of classes.
        n_classes: Number of classes.
        generator: Source of random numbers; None for the same ones at every call.

    Raises:
        InvalidInput: The samples have no labels, n is not a multiple of n_classes, or a class has too few samples.
    """
    targets = require_labels(samples, "A balanced subset")
    check_range("n of balanced_subset", n, 1)
    if n % n_classes:
        raise InvalidInput(
            f"The size of a balanced subset must be a multiple of the number of classes, {n_classes}; got {n}. "
            f"Use {n - n % n_classes or n_classes}."
        )
    counts = torch.bincount(targets, minlength=n_classes)[:n_classes]
    if int(counts.min()) < n // n_classes:
        raise InvalidInput(
            f"Every class must have {n // n_classes} samples for a balanced subset of {n}; "
            f"class {int(counts.argmin())} has {int(counts.min())}. Use at most {int(counts.min()) * n_classes}."
        )
    order = torch.randperm(len(samples), generator=resolve_generator(generator, "training subset"))
    labels = targets[order]
    mask = torch.zeros(len(order), dtype=torch.bool)
    for label in range(n_classes):
        mask[(labels == label).nonzero().flatten()[: n // n_classes]] = True
    return samples.subset(order[mask])


# (radius, standard deviation) by severity, of MNIST-C (Mu and Gilmer 2019)
SEVERITIES = ((10, 3.0), (15, 5.0), (15, 8.0), (15, 12.0), (20, 15.0))
# pixels of MNIST
_FULL_SIDE = 28
# images that are blurred at once
_CHUNK = 1000


def blur_settings(severity: int, side: int) -> tuple[int, float]:
    """Return (radius, sigma) in pixels for images whose shorter side has `side` pixels."""
    # From 28 pixels on these are MNIST-C's values. Smaller images scale both by side / 28, and limit the radius to
    # (side - 1) // 2, so that no step of the motion leaves the image: 8 x 8 digits have radius 3.
    check_range("severity of motion_blur", severity, 1, len(SEVERITIES))
    radius, sigma = SEVERITIES[severity - 1]
    if side >= _FULL_SIDE:
        return radius, sigma
    return min(round(radius * side / _FULL_SIDE), (side - 1) // 2), sigma * side / _FULL_SIDE


def _runs(shifts: Tensor) -> list[tuple[int, int, int, int]]:
    """Return runs of images with the same shift, as (start, stop, down, right)."""
    values, counts = torch.unique_consecutive(shifts, dim=0, return_counts=True)
    ends = counts.cumsum(0)
    return [
        (end - count, end, down, right)
        for (down, right), count, end in zip(
            values.tolist(), counts.tolist(), ends.tolist(), strict=True
        )
    ]


def _blur(images: Tensor, angles: Tensor, kernel: list[float]) -> Tensor:
    """Blur images sorted by angle (radians), so that equal shifts are adjacent in memory."""
    height, width = images.shape[-2:]
    margin_y = min(len(kernel), height)
    margin_x = min(len(kernel), width)
    padded = functional.pad(images, (margin_x, margin_x, margin_y, margin_y), mode="replicate")
    total = torch.zeros_like(images)
    for i, weight in enumerate(kernel):
        down = -torch.ceil(i * angles.sin() - 0.5).long()
        right = -torch.ceil(i * angles.cos() - 0.5).long()
        for start, stop, dy, dx in _runs(torch.stack((down, right), 1)):
            if abs(dy) >= height or abs(dx) >= width:
                continue
            top = margin_y - dy
            left = margin_x - dx
            total[start:stop].add_(
                padded[start:stop, :, top : top + height, left : left + width], alpha=weight
            )
    return total


def motion_blur(
    images: Float[Tensor, "n c h w"], severity: int = 1, generator: torch.Generator | None = None
) -> Float[Tensor, "n c h w"]:
    r"""Return the images blurred by a motion in a random direction per image, as in MNIST-C.

    With radius r and sigma of the severity, (10, 3), (15, 5), (15, 8), (15, 12) and (20, 15),

    $$x'(p) = \mathrm{clip}_{[0, 1]} \sum_{i=0}^{2 r} k_i\, x(p - s_i), \quad
      k_i \propto e^{-i^2 / (2 \sigma^2)}, \ \sum_i k_i = 1, \quad
      s_i = -\lceil (i \sin a - 1/2,\ i \cos a - 1/2) \rceil$$

    with (down, right) shifts in integer pixels, pixels outside the image replaced by the nearest inside, and
    a ~ U(-45, 45) degrees. Steps whose shift leaves the image are omitted with their weight, so that strong blur also
    darkens small images. For images smaller than 28 pixels radius and sigma are smaller in proportion.

    Args:
        images: Images in [0, 1].
        severity: 1 (the default of MNIST-C) to 5.
        generator: Source of random numbers; None for the same ones at every call.

    Raises:
        InvalidInput: These are not images.

    Reference: Mu & Gilmer 2019, "MNIST-C: A Robustness Benchmark for Computer Vision", motion blur.
    """
    if images.ndim != 4 or not images.is_floating_point():
        raise InvalidInput(
            f"Motion blur needs images, a float tensor of shape [n, channels, height, width]; got {images.dtype} "
            f"of shape {list(images.shape)}."
        )
    radius, sigma = blur_settings(severity, min(images.shape[-2:]))
    weights = [math.exp(-(i**2) / (2 * sigma**2)) for i in range(2 * radius + 1)]
    kernel = [weight / sum(weights) for weight in weights]
    generator = resolve_generator(generator, "motion blur")
    turns = 2 * torch.rand(len(images), generator=generator, dtype=torch.float64) - 1
    # the direction of the motion, as in MNIST-C
    angles = turns * math.radians(45.0)
    order = angles.argsort()
    blurred = torch.empty_like(images)
    for part in slices(len(images), _CHUNK):
        indices = order[part]
        blurred[indices] = _blur(images[indices], angles[indices], kernel).clamp_(0, 1)
    return blurred


def flip_shift_rotate(
    images: Float[Tensor, "n c h w"], *, generator: torch.Generator | None = None
) -> Float[Tensor, "n c h w"]:
    """Flip, rotate (up to 15 degrees) and shift (up to a tenth) each image at random.

    Angle and both shifts are uniform; pixels are interpolated linearly, those outside replaced by the nearest inside.
    These are the settings of the code of Zhao, Zhang, Hu 2022. Training passes `torch.default_generator`, with its own
    seed.

    Raises:
        InvalidInput: These are not images.
    """
    if images.ndim != 4:
        raise InvalidInput(
            f"Augmentation needs images [n, channels, height, width]; got {list(images.shape)}. Set it to 'none'."
        )
    n, _, height, width = images.shape
    flip, angle, across, down = torch.rand(
        4, n, generator=resolve_generator(generator, "augmentation")
    )
    mirror = torch.where(flip < 0.5, -1.0, 1.0)
    # degrees and fraction of the side below: the code of Zhao, Zhang, Hu 2022
    angle = math.radians(15.0) * (2 * angle - 1)
    cosine = angle.cos()
    sine = angle.sin()
    # affine_grid scales both sides to [-1, 1]: a rotation needs the ratio of the sides to preserve angles
    ratio = height / width
    shift = 2 * 0.1
    rows = [
        torch.stack([mirror * cosine, -sine * ratio, shift * (2 * across - 1)], 1),
        torch.stack([mirror * sine / ratio, cosine, shift * (2 * down - 1)], 1),
    ]
    maps = torch.stack(rows, 1).to(images.device, images.dtype)
    grid = functional.affine_grid(maps, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
