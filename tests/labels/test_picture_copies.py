"""Copies of pictures: saved again, resized and mirrored ones are found, different pictures are not."""

from __future__ import annotations

import torch
from torch import nn

from gapscope.base.samples import Samples
from gapscope.labels.duplicates import duplicate_pairs, duplicates_in_test
from gapscope.labels.picture_copies import are_pictures, copied_pictures


def pictures(n: int = 60) -> torch.Tensor:
    """Smooth random pictures of 24 x 24 pixels."""
    g = torch.Generator().manual_seed(0)
    small = torch.rand(n, 3, 6, 6, generator=g)
    return nn.functional.interpolate(small, size=24, mode="bilinear")


def resized(x: torch.Tensor) -> torch.Tensor:
    small = nn.functional.interpolate(x, size=20, mode="bilinear")
    return nn.functional.interpolate(small, size=24, mode="bilinear")


def test_copies_that_were_changed_are_found() -> None:
    x = pictures()
    g = torch.Generator().manual_seed(1)
    noisy = x[:5] + 0.02 * torch.randn(5, 3, 24, 24, generator=g)
    copies = torch.cat([noisy, resized(x[5:10]), x[10:15].flip(-1)])
    expected = [(i, 60 + i) for i in range(15)]
    assert copied_pictures(torch.cat([x, copies])) == expected
    assert copied_pictures(x, copies) == [(i, i) for i in range(15)]
    assert duplicate_pairs(Samples(torch.cat([x, copies]))) == expected
    assert duplicates_in_test(Samples(x), Samples(copies)) == tuple((i, i) for i in range(15))


def test_different_and_symmetric_pictures_are_no_copies() -> None:
    x = pictures()
    symmetric = (x + x.flip(-1)) / 2
    assert copied_pictures(x) == [] and copied_pictures(symmetric) == []


def test_tables_and_small_or_deep_images_are_no_pictures() -> None:
    assert are_pictures(pictures(2)) and not are_pictures(torch.rand(4, 8))
    assert not are_pictures(torch.rand(4, 3, 4, 4)) and not are_pictures(torch.rand(4, 16, 8, 8))
