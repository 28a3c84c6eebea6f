from __future__ import annotations

from typing import Any

import pytest
import torch

from gapscope.base.errors import InvalidInput
from gapscope.data.corruptions import flip_shift_rotate


def chosen(monkeypatch: pytest.MonkeyPatch, *numbers: float) -> None:
    """Let the draws for flip, angle and shifts be these numbers in [0, 1)."""

    def rand(*size: int, generator: Any = None) -> torch.Tensor:
        return torch.tensor(numbers)[:, None].expand(*size)

    monkeypatch.setattr(torch, "rand", rand)


def picture(height: int = 20, width: int = 20) -> torch.Tensor:
    image = torch.zeros(1, 1, height, width)
    image[0, 0, 3, 5] = 1.0
    return image


def test_the_middle_of_every_range_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen(monkeypatch, 0.5, 0.5, 0.5, 0.5)
    assert torch.allclose(flip_shift_rotate(picture()), picture(), atol=1e-5)


def test_a_flip_mirrors_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen(monkeypatch, 0.0, 0.5, 0.5, 0.5)
    assert torch.allclose(flip_shift_rotate(picture()), picture().flip(3), atol=1e-5)


def test_the_largest_shift_is_a_tenth_of_the_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen(monkeypatch, 0.5, 0.5, 1.0, 0.0)
    moved = flip_shift_rotate(picture())
    assert moved[0, 0, 5, 3] == pytest.approx(1, abs=1e-4)


def test_rotations_keep_distances_of_pixels_that_are_no_squares(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen(monkeypatch, 0.5, 1.0, 0.5, 0.5)
    image = torch.zeros(1, 1, 20, 60)
    image[0, 0, 9:11, 48:50] = 1.0  # 19 pixels right of the centre: 15 degrees move it by 19 sin 15 = 4.9 rows
    turned = flip_shift_rotate(image)[0, 0]
    rows, columns = torch.arange(20.0) - 9.5, torch.arange(60.0) - 29.5
    down, right = (turned.sum(1) * rows).sum() / turned.sum(), (turned.sum(0) * columns).sum() / turned.sum()
    assert float((down**2 + right**2).sqrt()) == pytest.approx(19, abs=0.2)
    assert abs(float(torch.atan2(down, right).rad2deg())) == pytest.approx(15, abs=0.5)


def test_every_image_is_changed_in_its_own_way() -> None:
    images = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0)).expand(4, 3, 8, 8)
    first, again = (flip_shift_rotate(images, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.allclose(first[0], first[1])


def test_other_inputs_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"needs images \[n, channels, height, width\]; got \[5, 3\]"):
        flip_shift_rotate(torch.zeros(5, 3))
