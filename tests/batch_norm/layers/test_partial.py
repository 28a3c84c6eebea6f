"""Mean-only and variance-only batch norm against their formulas."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from gapscope.batch_norm.layers.partial import (
    MeanOnlyBatchNorm1d,
    MeanOnlyBatchNorm2d,
    VarianceOnlyBatchNorm1d,
    VarianceOnlyBatchNorm2d,
)


def test_formula_in_training_and_evaluation() -> None:
    h = 5 + torch.randn(8, 2, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    layer: Any = MeanOnlyBatchNorm2d(2, momentum=0.25).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([2.0, -1.0]))
        layer.bias.copy_(torch.tensor([0.5, 0.0]))
    gamma, beta = layer.weight[:, None, None], layer.bias[:, None, None]
    mean = h.mean((0, 2, 3), keepdim=True)
    torch.testing.assert_close(layer(h), gamma * (h - mean) + beta)
    torch.testing.assert_close(layer.running_mean, 0.25 * mean.flatten())
    torch.testing.assert_close(layer.eval()(h), gamma * (h - 0.25 * mean) + beta)


def test_a_batch_norm_state_is_refused() -> None:
    with pytest.raises(RuntimeError, match="running_var"):
        MeanOnlyBatchNorm1d(3).load_state_dict(nn.BatchNorm1d(3).state_dict())


@pytest.mark.parametrize("rms", [False, True])
def test_formula_in_training_and_evaluation_of_variance_only(rms: bool) -> None:
    h = 2 + torch.randn(8, 2, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    layer: Any = VarianceOnlyBatchNorm2d(2, momentum=0.25, rms=rms).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([2.0, -1.0]))
        layer.bias.copy_(torch.tensor([0.5, 0.0]))
    gamma, beta = layer.weight[:, None, None], layer.bias[:, None, None]
    values = h.transpose(0, 1).flatten(1)
    biased = values.square().mean(1) if rms else values.var(1, unbiased=False)
    tracked = biased if rms else values.var(1)
    torch.testing.assert_close(layer(h), gamma * h / (biased + layer.eps).sqrt()[:, None, None] + beta)
    running = 0.75 + 0.25 * tracked
    torch.testing.assert_close(layer.running_var, running)
    torch.testing.assert_close(layer.eval()(h), gamma * h / (running + layer.eps).sqrt()[:, None, None] + beta)


def test_a_constant_channel_is_divided_by_the_root_of_eps() -> None:
    h = torch.full((4, 1), 3.0)
    torch.testing.assert_close(VarianceOnlyBatchNorm1d(1, eps=1e-4)(h), 100 * h)
    torch.testing.assert_close(VarianceOnlyBatchNorm1d(1, eps=1e-4, rms=True)(h), h / (9 + 1e-4) ** 0.5)
    assert torch.equal(VarianceOnlyBatchNorm1d(1)(torch.zeros(4, 1)), torch.zeros(4, 1))
