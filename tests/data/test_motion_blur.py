from __future__ import annotations

import math
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gapscope.base.errors import InvalidInput
from gapscope.data.corruptions import SEVERITIES, blur_settings, motion_blur


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def slow_blur(image: torch.Tensor, radius: int, sigma: float, angle: float) -> torch.Tensor:
    """One image [h, w], pixel by pixel in float64, as the definition is written."""
    height, width = image.shape
    steps = range(2 * radius + 1)
    weights = [math.exp(-(i**2) / (2 * sigma**2)) for i in steps]
    pixels, total = image.tolist(), [[0.0] * width for _ in range(height)]
    for i in steps:
        dy = -math.ceil(i * math.sin(angle) - 0.5)
        dx = -math.ceil(i * math.cos(angle) - 0.5)
        if abs(dy) >= height or abs(dx) >= width:
            break
        for y in range(height):
            for x in range(width):
                source = pixels[min(max(y - dy, 0), height - 1)][min(max(x - dx, 0), width - 1)]
                total[y][x] += weights[i] / sum(weights) * source
    return torch.tensor(total, dtype=torch.float64).clamp(0, 1)


@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("shape", [(28, 28), (8, 8), (32, 30), (12, 30)])
def test_every_image_is_blurred_as_the_definition_says(severity: int, shape: tuple[int, int]) -> None:
    images = torch.rand(2, 1, *shape, generator=seeded(severity))
    blurred = motion_blur(images, severity, seeded(2))
    angles = (2 * torch.rand(2, generator=seeded(2), dtype=torch.float64) - 1) * math.pi / 4
    radius, sigma = blur_settings(severity, min(shape))
    for image, result, angle in zip(images[:, 0], blurred[:, 0], angles.tolist(), strict=True):
        assert torch.allclose(result.double(), slow_blur(image, radius, sigma, angle), atol=1e-6)


@settings(max_examples=20)
@given(
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    channels=st.integers(1, 3),
    severity=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_channels_are_blurred_alike_and_values_stay_in_range(
    height: int, width: int, channels: int, severity: int, seed: int
) -> None:
    grey = torch.rand(3, 1, height, width, generator=seeded(seed))
    blurred = motion_blur(grey.expand(-1, channels, -1, -1), severity, seeded(seed))
    assert blurred.shape == (3, channels, height, width)
    assert torch.equal(blurred, blurred[:, :1].expand_as(blurred))
    # An average never exceeds the largest value, up to rounding.
    assert bool((blurred.amax((1, 2, 3)) <= grey.amax((1, 2, 3)) + 1e-6).all())
    assert float(blurred.min()) >= 0


def test_the_order_of_images_is_kept_across_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.rand(50, 1, 10, 10, generator=seeded())
    whole = motion_blur(images, 3, seeded(1))
    monkeypatch.setattr(sys.modules[motion_blur.__module__], "_CHUNK", 7)
    assert torch.equal(motion_blur(images, 3, seeded(1)), whole)


def test_the_settings_are_those_of_mnist_c_from_28_pixels_up() -> None:
    assert SEVERITIES == ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))
    assert [blur_settings(severity, 28) for severity in range(1, 6)] == list(SEVERITIES)
    assert blur_settings(5, 96) == (20, 15)


def test_small_images_get_a_small_kernel_that_never_leaves_them() -> None:
    assert [blur_settings(severity, 8)[0] for severity in range(1, 6)] == [3] * 5
    assert [blur_settings(severity, 8)[1] for severity in range(1, 6)] == [s * 8 / 28 for _, s in SEVERITIES]
    for side in range(1, 28):
        assert all(2 * blur_settings(severity, side)[0] < side for severity in range(1, 6))


def test_wrong_input_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"severity of motion_blur must lie in \[1, 5\]; got 6"):
        motion_blur(torch.zeros(1, 1, 8, 8), 6)
    with pytest.raises(InvalidInput, match=r"needs images.*got torch.float32 of shape \[3, 2\]"):
        motion_blur(torch.zeros(3, 2))
    with pytest.raises(InvalidInput, match=r"got torch.uint8 of shape \[1, 1, 8, 8\]"):
        motion_blur(torch.zeros(1, 1, 8, 8, dtype=torch.uint8))
