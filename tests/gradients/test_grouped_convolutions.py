from __future__ import annotations

import math

import pytest
import torch

from gapscope.gradients import square_norms
from gapscope.gradients.layouts import Windows
from gapscope.gradients.square_norms import jacobian_square_norms


@pytest.mark.parametrize(
    ("dims", "kernel", "stride", "dilation", "ones"),
    [
        (1, (3,), (2,), (1,), False),
        (2, (3, 2), (2, 1), (1, 2), True),
        (2, (3, 3), (1, 1), (1, 1), False),
        (3, (2, 2, 3), (1, 2, 1), (1, 1, 2), True),
    ],
)
@pytest.mark.parametrize("threshold", [1, 10_000])
def test_the_same_as_by_unfolding(
    dims: int, kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...], ones: bool, threshold: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    layout = Windows(ones, kernel, stride, dilation)
    x = torch.randn(4, 2, *[9] * dims, dtype=torch.float64, requires_grad=True)
    places = math.prod(layout.places((9,) * dims))
    g = torch.randn(2, 4, 3, places, dtype=torch.float64, requires_grad=True)
    monkeypatch.setattr("gapscope.gradients.grouped_convolutions._WINDOWS", threshold)
    results = []
    for used in (True, False):
        monkeypatch.setattr(square_norms, "is_faster", lambda *_, used=used: used)
        norms = jacobian_square_norms(x, g, layout)
        results.append((norms, *torch.autograd.grad((norms * torch.arange(1, 5)).sum(), [x, g])))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-9)
