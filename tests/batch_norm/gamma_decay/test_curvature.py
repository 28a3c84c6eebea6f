"""Curvature by gamma and beta against autograd, and the data on which it is measured."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from batch_norm.some_networks import Residual, images, plain, warmed_up
from gapscope.base.errors import InvalidInput
from gapscope.batch_norm.gamma_decay.curvature import (
    derivatives_along,
    output_gradient,
    output_hessian_factor,
    tapped_forward,
)
from gapscope.batch_norm.norm_layers import batch_norm_layers
from gapscope.inspection.losses import Loss, sample_losses


def quartic(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs - targets) ** 4).mean(1) + outputs[:, 0] * outputs[:, 1] + outputs.square().sum(1)


def own_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


@pytest.mark.parametrize(
    ("loss", "labels"), [(sample_losses, True), (sample_losses, False), (own_cross_entropy, True), (quartic, False)]
)
def test_factor_of_the_hessian_by_outputs(loss: Loss, labels: bool) -> None:
    outputs = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    targets = torch.randint(0, 3, (6,)) if labels else torch.randn(6, 3, dtype=torch.float64)
    factor = output_hessian_factor(loss, outputs, targets)
    for i in range(6):
        dense = torch.autograd.functional.hessian(lambda o, i=i: loss(o[None], targets[i : i + 1])[0], outputs[i])
        torch.testing.assert_close(factor[i] @ factor[i].T, dense)
        gradient = torch.func.grad(lambda o, i=i: loss(o[None], targets[i : i + 1])[0])(outputs[i])
        torch.testing.assert_close(output_gradient(loss, outputs, targets)[i], gradient)


def test_losses_are_checked() -> None:
    outputs, targets = torch.randn(4, 2), torch.randn(4, 2)
    with pytest.raises(InvalidInput, match=r"one number per sample, shape \[4\]; got \[\]"):
        output_gradient(lambda o, t: (o - t).square().mean(), outputs, targets)
    with pytest.raises(InvalidInput, match="needs a loss convex in the outputs"):
        output_hessian_factor(lambda o, t: o.cos().sum(1), torch.zeros(4, 2), targets)


@pytest.mark.parametrize("make", [plain, Residual])
def test_derivatives_by_gamma_and_beta_sample_by_sample(make: type[nn.Module]) -> None:
    network = warmed_up(make().double())
    layers = batch_norm_layers(network)
    samples = images(5)
    outputs, taps = tapped_forward(network, layers, samples.inputs)
    direction = torch.randn(5, 3, dtype=torch.float64)
    result = {name: (by_gamma, by_beta) for name, by_gamma, by_beta in derivatives_along(outputs, taps, direction)}
    for i in range(5):
        value = (network(samples.inputs[i : i + 1]) * direction[i]).sum()
        for name, layer in layers.items():
            by_gamma, by_beta = torch.autograd.grad(value, [layer.weight, layer.bias], retain_graph=True)
            torch.testing.assert_close(result[name][0][i], by_gamma)
            torch.testing.assert_close(result[name][1][i], by_beta)
