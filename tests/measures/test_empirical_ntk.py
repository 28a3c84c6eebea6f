from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from gapscope.measures.ntk import empirical_ntk


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 4))


def _by_torch_func(network: nn.Module, x: Tensor) -> Tensor:
    parameters = dict(network.named_parameters())
    jacobians = vmap(jacrev(lambda p, one: functional_call(network, p, (one[None],))[0]), (None, 0))(parameters, x)
    flat = torch.cat([jacobian.flatten(2) for jacobian in jacobians.values()], 2)
    return torch.einsum("ncp,mdp->ncmd", flat, flat)


def _inputs(n: int) -> Tensor:
    return torch.randn(n, 1, 6, 6, generator=torch.Generator().manual_seed(1))


def test_agrees_with_torch_func() -> None:
    network, x = _network().double(), _inputs(5).double()
    kernel = empirical_ntk(network, x)
    torch.testing.assert_close(kernel, _by_torch_func(network, x).detach(), rtol=1e-12, atol=1e-12)
    assert not kernel.requires_grad
    torch.testing.assert_close(kernel, kernel.permute(2, 3, 0, 1))


def test_cross_kernel_and_chunks() -> None:
    network, x = _network(), _inputs(7)
    whole = empirical_ntk(network, x)
    torch.testing.assert_close(empirical_ntk(network, x[:3], x[3:]), whole[:3, :, 3:])
    torch.testing.assert_close(empirical_ntk(network, x, chunk_size=3), whole)
    torch.testing.assert_close(empirical_ntk(network, x, max_bytes=20_000), whole)


def test_double_precision_of_a_single_precision_network() -> None:
    network, x = _network(), _inputs(4)
    exact = empirical_ntk(network, x, x, dtype=torch.float64)
    assert exact.dtype == torch.float64
    difference = (empirical_ntk(network, x) - exact).abs().max() / exact.abs().max()
    assert 1e-9 < float(difference) < 1e-5
    assert next(network.parameters()).dtype == torch.float32
