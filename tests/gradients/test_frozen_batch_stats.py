from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gapscope.gradients.frozen_batch_stats import statistics_of


def _by_var_mean(h: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    variance, mean = torch.var_mean(h, [dim for dim in range(h.ndim) if dim != 1], correction=0)
    return mean, (variance + eps).rsqrt()


@pytest.mark.parametrize("shape", [(7, 3), (4, 3, 5), (4, 3, 2, 5)])
@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 1.0), (0.7, -2.0)])
def test_statistics_and_their_derivatives_are_those_of_var_mean(
    shape: tuple[int, ...], weights: tuple[float, float]
) -> None:
    h = (3 + 2 * torch.randn(shape, dtype=torch.float64)).requires_grad_()
    results = []
    for statistics in (statistics_of, _by_var_mean):
        mean, inverse = statistics(h, 1e-3)
        # a term whose weight is zero is left out: then no derivative by it arrives at all
        terms = [w * part.cos().sum() for w, part in zip(weights, (mean, inverse), strict=True) if w]
        (first,) = torch.autograd.grad(torch.stack(terms).sum(), h, create_graph=True)
        (second,) = torch.autograd.grad(first.sin().sum(), h)
        results.append((mean, inverse, first, second))
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-12)
