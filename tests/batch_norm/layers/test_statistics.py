"""Statistics of a batch and their derivatives of any order against torch's own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gapscope.batch_norm.layers._channel_norm import per_channel, with_mean, with_mean_and_variance


def values(*shape: int) -> Tensor:
    return 1 + 2 * torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mean_and_variance_far_from_zero(dtype: torch.dtype) -> None:
    h = values(50, 3, 7).to(dtype) + 1000
    same, mean, variance = with_mean_and_variance(h, dtype)
    assert torch.equal(same, h)
    torch.testing.assert_close(mean, h.double().mean((0, 2)).to(dtype))
    torch.testing.assert_close(with_mean(h, dtype)[1], mean)
    torch.testing.assert_close(variance, h.double().var((0, 2), unbiased=False).to(dtype), rtol=1e-4, atol=0)


def test_half_precision_is_summed_in_single() -> None:
    h = values(64, 3, 8, 8).bfloat16()
    _, mean, variance = with_mean_and_variance(h, torch.float32)
    assert mean.dtype == variance.dtype == with_mean(h, torch.float32)[1].dtype == torch.float32
    torch.testing.assert_close(mean, h.double().mean((0, 2, 3)).float())
    torch.testing.assert_close(variance, h.double().var((0, 2, 3), unbiased=False).float())


@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 2), (3, 2, 2, 3)])
def test_derivatives_of_first_and_second_order(shape: tuple[int, ...]) -> None:
    def function(h: Tensor) -> Tensor:
        same, mean, variance = with_mean_and_variance(h, h.dtype)
        other, again = with_mean(h, h.dtype)
        return same * per_channel(variance.sqrt() * again, h) + other * per_channel(mean.sin(), h)

    h = values(*shape).requires_grad_()
    assert torch.autograd.gradcheck(function, (h,))
    assert torch.autograd.gradgradcheck(function, (h,))
