"""Copies among samples: exact, near, and of images saved again, resized or mirrored."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

import gapscope as gs
from gapscope.labels.duplicates import conflicting_duplicates, duplicate_pairs, duplicates_in_test


def pictures(n: int) -> Tensor:
    """Return smooth random images [n, 3, 32, 32] with values in [0, 1]."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(n, 3, 6, 6, generator=generator)
    return F.interpolate(coarse, size=32, mode="bicubic").clamp(0, 1)


def saved_again(picture: Tensor) -> Tensor:
    pixels = (255 * picture).round().byte().permute(1, 2, 0).numpy()
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "jpeg", quality=80)
    return torch.tensor(np.asarray(Image.open(content)) / 255, dtype=torch.float32).permute(2, 0, 1)


def resized(picture: Tensor) -> Tensor:
    small = F.interpolate(picture[None], size=20, mode="bilinear", antialias=True)
    return F.interpolate(small, size=32, mode="bilinear")[0]


def mirrored(picture: Tensor) -> Tensor:
    return picture.flip(-1)


@pytest.mark.parametrize("copy", [saved_again, resized, mirrored, lambda picture: saved_again(picture.flip(-1))])
def test_copies_of_images_are_found(copy: Callable[[Tensor], Tensor]) -> None:
    x = pictures(60)
    copies = torch.stack([copy(picture) for picture in x[:5]])
    both = gs.Samples(torch.cat([x, copies]))
    assert duplicate_pairs(both) == [(k, 60 + k) for k in range(5)]
    assert duplicates_in_test(gs.Samples(x), gs.Samples(copies)) == tuple((k, k) for k in range(5))


def test_different_images_are_no_copies() -> None:
    x = gs.load_dataset("digits").train.inputs[:400]
    symmetric = (x + x.flip(-1)) / 2  # equal to their own mirror images
    assert duplicate_pairs(gs.Samples(x)) == [] and duplicate_pairs(gs.Samples(symmetric[:60])) == []


def test_rows_of_tables() -> None:
    x = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    near = x[:3] + 1e-4
    both = gs.Samples(torch.cat([x, near]), torch.arange(53) % 2)
    assert duplicate_pairs(both) == [(0, 50), (1, 51), (2, 52)]
    assert conflicting_duplicates(both) == tuple(pair for pair in ((0, 50), (1, 51), (2, 52)) if sum(pair) % 2)


def test_few_samples() -> None:
    x = torch.tensor([[1.0, 2.0], [1.0, 2.0]])
    assert duplicate_pairs(gs.Samples(x)) == [(0, 1)]
    assert duplicates_in_test(gs.Samples(x), gs.Samples(x[:1])) == ((0, 0),)
