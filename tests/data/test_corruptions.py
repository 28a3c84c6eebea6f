from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.data.corruptions import (
    SEVERITIES,
    add_target_noise,
    balanced_subset,
    blur_settings,
    flip_shift_rotate,
    inject_label_noise,
    motion_blur,
    subset,
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(
    n=st.integers(0, 200),
    rate=st.floats(0, 1),
    n_classes=st.integers(2, 20),
    seed=st.integers(0, 1000),
)
def test_exactly_round_rate_n_labels_become_another_class(
    n: int, rate: float, n_classes: int, seed: int
) -> None:
    labels = torch.arange(n) % n_classes
    noisy = inject_label_noise(labels, rate, n_classes, seeded(seed))
    assert int((noisy != labels).sum()) == round(rate * n)
    assert torch.equal(labels, torch.arange(n) % n_classes), "the input must stay as it is"
    if n:
        assert int(noisy.min()) >= 0
        assert int(noisy.max()) < n_classes


def test_the_other_classes_are_equally_likely() -> None:
    noisy = inject_label_noise(torch.full((90_000,), 3), 1.0, 10, seeded())
    counts = torch.bincount(noisy, minlength=10).double()
    assert counts[3] == 0
    # Chi-squared with 8 degrees of freedom exceeds 26 with probability 0.001.
    assert ((counts[counts > 0] - 10_000) ** 2 / 10_000).sum() < 26


def test_target_noise_has_the_stated_standard_deviation() -> None:
    targets = torch.full((20_000, 2), 5.0)
    noise = add_target_noise(targets, 10.0, seeded()).double() - 5
    # 40,000 numbers: the mean has standard error 0.05, the standard deviation 0.035.
    assert abs(noise.mean()) < 0.2
    assert abs(noise.std() - 10) < 0.14
    assert abs(torch.corrcoef(noise.T)[0, 1]) < 0.03
    assert torch.equal(targets, torch.full((20_000, 2), 5.0))


SAMPLES = Samples(torch.arange(60.0).reshape(30, 2), torch.arange(30) % 3)


def rows(samples: Samples) -> list[int]:
    return [int(value) // 2 for value in samples.inputs[:, 0]]


@given(n=st.integers(1, 30), seed=st.integers(0, 1000))
def test_a_subset_has_no_sample_twice_and_keeps_targets(n: int, seed: int) -> None:
    result = subset(SAMPLES, n, seeded(seed))
    assert len(set(rows(result))) == n == len(result)
    assert result.y.tolist() == [row % 3 for row in rows(result)]
    assert rows(subset(SAMPLES, 30, seeded(seed)))[:n] == rows(result)


@given(each=st.integers(1, 10), seed=st.integers(0, 1000))
def test_a_balanced_subset_has_equally_many_of_every_class(each: int, seed: int) -> None:
    result = balanced_subset(SAMPLES, 3 * each, 3, seeded(seed))
    assert torch.bincount(result.y).tolist() == [each] * 3
    assert len(set(rows(result))) == 3 * each
    assert result.y.tolist() == [row % 3 for row in rows(result)]


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
@pytest.mark.parametrize("shape", [(28, 28), (8, 8), (12, 30)])
def test_motion_blur_follows_the_definition(severity: int, shape: tuple[int, int]) -> None:
    images = torch.rand(2, 2, *shape, generator=seeded(severity))
    blurred = motion_blur(images, severity, seeded(2))
    angles = (2 * torch.rand(2, generator=seeded(2), dtype=torch.float64) - 1) * math.pi / 4
    radius, sigma = blur_settings(severity, min(shape))
    for image, result, angle in zip(images, blurred, angles.tolist(), strict=True):
        expected = torch.stack([slow_blur(channel, radius, sigma, angle) for channel in image])
        assert torch.allclose(result.double(), expected, atol=1e-6)


def test_chunks_do_not_change_the_order_of_images(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.rand(50, 1, 10, 10, generator=seeded())
    in_one_chunk = motion_blur(images, 3, seeded(1))
    monkeypatch.setattr(sys.modules[motion_blur.__module__], "_CHUNK", 7)
    assert torch.equal(motion_blur(images, 3, seeded(1)), in_one_chunk)


def test_blur_settings_are_those_of_mnist_c_and_smaller_below_28_pixels() -> None:
    assert SEVERITIES == ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))
    assert [blur_settings(severity, 28) for severity in range(1, 6)] == list(SEVERITIES)
    assert blur_settings(5, 96) == (20, 15)
    assert [blur_settings(severity, 8)[0] for severity in range(1, 6)] == [3] * 5
    assert [blur_settings(severity, 8)[1] for severity in range(1, 6)] == [
        s * 8 / 28 for _, s in SEVERITIES
    ]
    for side in range(1, 28):
        assert all(2 * blur_settings(severity, side)[0] < side for severity in range(1, 6))


def set_random_numbers(monkeypatch: pytest.MonkeyPatch, *numbers: float) -> None:
    """Set the random numbers in [0, 1) of flip, angle and shifts."""

    def rand(*size: int, generator: Any = None) -> torch.Tensor:
        return torch.tensor(numbers)[:, None].expand(*size)

    monkeypatch.setattr(torch, "rand", rand)


@pytest.mark.parametrize(
    ("numbers", "position"),
    [
        ((0.5, 0.5, 0.5, 0.5), (3, 5)),  # the middle of every range changes nothing
        ((0.0, 0.5, 0.5, 0.5), (3, 14)),  # a flip mirrors columns
        ((0.5, 0.5, 1.0, 0.0), (5, 3)),  # the largest shift is a tenth of the sides
    ],
)
def test_flips_and_shifts_move_pixels(
    monkeypatch: pytest.MonkeyPatch, numbers: tuple[float, ...], position: tuple[int, int]
) -> None:
    set_random_numbers(monkeypatch, *numbers)
    image, expected = torch.zeros(2, 1, 1, 20, 20)
    image[0, 0, 3, 5] = expected[0, 0, *position] = 1.0
    assert torch.allclose(flip_shift_rotate(image), expected, atol=1e-4)


def test_rotations_keep_distances_in_images_that_are_not_square(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_random_numbers(monkeypatch, 0.5, 1.0, 0.5, 0.5)
    image = torch.zeros(1, 1, 20, 60)
    image[0, 0, 9:11, 48:50] = (
        1.0  # 19 pixels right of the centre: 15 degrees move it by 19 sin 15 = 4.9 rows
    )
    rotated = flip_shift_rotate(image)[0, 0]
    rows, columns = torch.arange(20.0) - 9.5, torch.arange(60.0) - 29.5
    down, right = (
        (rotated.sum(1) * rows).sum() / rotated.sum(),
        (rotated.sum(0) * columns).sum() / rotated.sum(),
    )
    assert float((down**2 + right**2).sqrt()) == pytest.approx(19, abs=0.2)
    assert abs(float(torch.atan2(down, right).rad2deg())) == pytest.approx(15, abs=0.5)


LABELS, IMAGE = torch.tensor([0, 1, 2]), torch.zeros(1, 1, 8, 8)
NO_LABELS = Samples(torch.zeros(4, 2), torch.zeros(4, 1))
INVALID: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: inject_label_noise(LABELS, 1.5, 10),
        r"rate of label_noise must lie in \[0, 1\]; got 1.5",
    ),
    (
        lambda: inject_label_noise(LABELS, 0.5, 1),
        "n_classes of label_noise",
    ),
    (
        lambda: inject_label_noise(LABELS, 0.5, 2),
        "Class labels must be smaller than the number of classes, 2; got 2",
    ),
    (
        lambda: balanced_subset(SAMPLES, 31, 3),
        "multiple of the number of classes, 3; got 31. Use 30",
    ),
    (lambda: balanced_subset(SAMPLES, 2, 3), "multiple of the number of classes, 3; got 2. Use 3"),
    (
        lambda: balanced_subset(SAMPLES, 33, 3),
        "must have 11 samples .* of 33; class 0 has 10. Use at most 30",
    ),
    (lambda: balanced_subset(SAMPLES, 0, 3), "n of balanced_subset must be"),
    (
        lambda: balanced_subset(NO_LABELS, 2, 2),
        "A balanced subset needs class labels.*got torch.float32",
    ),
    (lambda: subset(SAMPLES, 31), r"n of subset must lie in \[1, 30\]; got 31"),
    (lambda: motion_blur(IMAGE, 6), r"severity of motion_blur must lie in \[1, 5\]; got 6"),
    (lambda: motion_blur(torch.zeros(3, 2)), r"needs images.*got torch.float32 of shape \[3, 2\]"),
    (lambda: motion_blur(IMAGE.to(torch.uint8)), r"got torch.uint8 of shape \[1, 1, 8, 8\]"),
    (
        lambda: flip_shift_rotate(torch.zeros(5, 3)),
        r"needs images \[n, channels, height, width\]; got \[5, 3\]",
    ),
]


@pytest.mark.parametrize(("call", "message"), INVALID)
def test_wrong_input_is_rejected(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        call()
