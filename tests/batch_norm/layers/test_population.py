"""Population norm: value of evaluation, gradient of batch renormalization."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gapscope.batch_norm.layers.population import PopulationNorm1d, PopulationNorm2d


def filled(layer: PopulationNorm2d) -> PopulationNorm2d:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for tensor in [*layer.parameters(), layer.running_mean, layer.running_var]:
            tensor.copy_(torch.rand(4, generator=generator) + 0.3)
    return layer


@pytest.fixture
def h() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return (2 + 3 * torch.randn(6, 4, 3, 3, generator=generator, dtype=torch.float64)).requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_training_value_is_the_evaluation_value_bit_for_bit(h: Tensor, dtype: torch.dtype) -> None:
    layer = filled(PopulationNorm2d(4)).double()
    layer = layer.float() if dtype == torch.bfloat16 else layer.to(dtype)
    given = h.detach().to(dtype)
    assert torch.equal(layer.train()(given), layer.eval()(given))


def test_same_value_as_batch_norm_in_evaluation(h: Tensor) -> None:
    layer, batch_norm = filled(PopulationNorm2d(4).double()), nn.BatchNorm2d(4).double().eval()
    batch_norm.load_state_dict(layer.state_dict())
    assert torch.equal(layer(h), batch_norm(h))
    layer.load_state_dict(batch_norm.state_dict())


@pytest.mark.parametrize("affine", [True, False])
def test_gradient_is_that_of_batch_renormalization(h: Tensor, affine: bool) -> None:
    layer: Any = PopulationNorm2d(4, affine=affine).double()
    if affine:
        filled(layer)
    layer.running_mean.uniform_(1, 3)
    layer.running_var.uniform_(5, 15)
    g = torch.randn(h.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    ours = torch.autograd.grad(layer(h), [h, *layer.parameters()], g)

    gamma, beta = (p.detach().clone().requires_grad_() for p in (layer.weight, layer.bias)) if affine else (None, None)
    spread = (h.var((0, 2, 3), unbiased=False) + layer.eps).sqrt()
    population = (layer.running_var + layer.eps).sqrt()
    r, d = (spread / population).detach(), ((h.mean((0, 2, 3)) - layer.running_mean) / population).detach()
    normalized = (h - h.mean((0, 2, 3))[:, None, None]) / spread[:, None, None]
    y = normalized * r[:, None, None] + d[:, None, None]
    if gamma is not None and beta is not None:
        y = y * gamma[:, None, None] + beta[:, None, None]
    torch.testing.assert_close(layer(h), y)
    oracle = torch.autograd.grad(y, [h] if gamma is None else [h, gamma, beta], g)
    for one, other in zip(ours, oracle, strict=True):
        torch.testing.assert_close(one, other)


def test_gradient_does_not_depend_on_the_scale_of_the_weights_before() -> None:
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gradients = []
    for scale in (1.0, 5.0):
        weight = (scale * torch.eye(3, dtype=torch.float64)[:2]).requires_grad_()
        layer = PopulationNorm1d(2, eps=0.0).double()
        with torch.no_grad():
            layer.running_mean.copy_((x @ weight.T).mean(0))
            layer.running_var.copy_((x @ weight.T).var(0))
        layer(x @ weight.T).pow(3).sum().backward()
        assert weight.grad is not None
        gradients.append(weight.grad)
        assert abs(float((weight.detach() * weight.grad).sum())) < 1e-10
    torch.testing.assert_close(gradients[0], 5 * gradients[1])


def test_detached_gradient_is_the_plain_one(h: Tensor) -> None:
    layer: Any = filled(PopulationNorm2d(4, detach=True).double())
    (gradient,) = torch.autograd.grad(layer(h).sum(), h)
    expected = (layer.weight / (layer.running_var + layer.eps).sqrt())[:, None, None].expand(6, 4, 3, 3)
    torch.testing.assert_close(gradient, expected.detach())
    single = PopulationNorm1d(2, detach=True)
    assert single(torch.ones(1, 2)).isfinite().all()


def test_training_leaves_the_statistics_alone(h: Tensor) -> None:
    layer = filled(PopulationNorm2d(4).double())
    mean, variance = layer.running_mean.clone(), layer.running_var.clone()
    layer(h).sum().backward()
    assert torch.equal(layer.running_mean, mean) and torch.equal(layer.running_var, variance)
    assert "detach=False" in repr(layer)
