"""Proxies of untrained networks: closed forms of homogeneous networks, dense gradients and correlations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gapscope.base.errors import InvalidInput, NotMeasurable
from gapscope.measures.before_training import (
    connection_sensitivity,
    gradient_norm,
    jacobian_covariance,
    synaptic_flow,
)

DOUBLE = torch.float64


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)
    ).double()


def test_synaptic_flow_of_a_network_without_biases() -> None:
    layers = [nn.Linear(i, o, bias=False) for i, o in ((4, 6), (6, 5), (5, 3))]
    net = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2]).double()
    product = layers[2].weight.abs() @ layers[1].weight.abs() @ layers[0].weight.abs()
    result = synaptic_flow(net, torch.zeros(2, 4, dtype=DOUBLE))
    assert result == pytest.approx(math.log(3 * float(product.sum().detach())), rel=1e-12)
    with pytest.raises(NotMeasurable, match="flow"):
        nn.init.zeros_(layers[1].weight)
        synaptic_flow(net, torch.zeros(2, 4, dtype=DOUBLE))


def test_synaptic_flow_with_batch_norm_as_a_linear_map() -> None:
    net = nn.Sequential(
        nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.Linear(4, 2, bias=False)
    ).double()
    nn.init.normal_(net[1].weight)  # type: ignore[arg-type]
    net.train()(torch.randn(40, 3, dtype=DOUBLE))
    norm = net.eval()[1]
    assert (
        isinstance(norm, nn.BatchNorm1d)
        and norm.running_var is not None
        and norm.running_mean is not None
    )
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    shift = norm.bias - norm.running_mean * scale
    one, two = (net.get_submodule(name).get_parameter("weight").abs() for name in ("0", "2"))
    paths = two @ (scale.abs()[:, None] * one)
    # the first layer's weights see the paths; the last layer's see these and the shifts
    expected = 2 * paths.sum() + (two @ shift.abs()).sum()
    assert synaptic_flow(net, torch.zeros(1, 3, dtype=DOUBLE)) == pytest.approx(
        math.log(float(expected.detach()))
    )


def test_correlations_of_dense_input_gradients() -> None:
    net, x = network(), torch.randn(9, 4, dtype=DOUBLE)
    rows = []
    for sample in x:
        sample = sample.clone().requires_grad_()
        rows.append(torch.autograd.grad(net(sample[None]).sum(), sample)[0])
    eigenvalues = np.linalg.eigvalsh(np.corrcoef(torch.stack(rows).numpy()))
    expected = -np.mean(np.log(eigenvalues + 1e-5) + 1 / (eigenvalues + 1e-5))
    assert jacobian_covariance(net, x[:3]) == pytest.approx(
        jacobian_covariance(net, x[:3], group_size=3)
    )
    assert jacobian_covariance(net, x) == pytest.approx(float(expected), rel=1e-3)
    with pytest.raises(InvalidInput, match="number of samples"):
        jacobian_covariance(net, x[:1])


def test_gradient_norms_and_connection_sensitivity_of_dense_gradients() -> None:
    net, x, y = network(), torch.randn(7, 4, dtype=DOUBLE), torch.arange(7) % 3
    parameters = list(net.parameters())
    gradients = torch.autograd.grad(F.cross_entropy(net(x), y), parameters)
    result = gradient_norm(net, x, y)
    assert result["whole"] == pytest.approx(
        float(torch.cat([g.flatten() for g in gradients]).norm()), rel=1e-10
    )
    assert result["sum"] == pytest.approx(
        sum(float(g.norm()) for g in gradients if g.ndim == 2), rel=1e-10
    )
    expected = sum(
        float((g * p.detach()).abs().sum())
        for g, p in zip(gradients, parameters, strict=True)
        if g.ndim > 1
    )
    assert connection_sensitivity(net, x, y) == pytest.approx(expected, rel=1e-10)
