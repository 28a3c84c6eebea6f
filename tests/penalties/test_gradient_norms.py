"""Penalties on the input Jacobian and on the gradient of the loss."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import jacrev, vmap

from gapscope.base.errors import InvalidInput
from gapscope.penalties.gradient_norms import InputJacobianPenalty, LossGradientPenalty
from gradients.reference import gradient_of


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)).double()


def _batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(6, 3, dtype=torch.float64, generator=generator), torch.randint(
        0, 4, (6,), generator=generator
    )


def test_exact_value_and_gradient() -> None:
    network, (x, _) = _network(), _batch()
    expected = vmap(jacrev(lambda one: network(one[None])[0]))(x).square().sum()
    value = 24 * InputJacobianPenalty(0.5, method="exact")(network, x)
    torch.testing.assert_close(value, 0.5 * expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(
        gradient_of(value, network), 0.5 * gradient_of(expected, network), rtol=1e-10, atol=1e-12
    )


def test_probes_are_unbiased() -> None:
    network, (x, _) = _network(), _batch()
    penalty = InputJacobianPenalty(1.0)
    draws = torch.stack([penalty(network, x).detach() for _ in range(400)])
    expected = InputJacobianPenalty(1.0, method="exact")(network, x).detach()
    assert abs(float(draws.mean() - expected)) < 4 * float(draws.std()) / 20
    assert float(draws.std()) > 0


def test_gradient_of_the_loss_gradient_by_finite_differences() -> None:
    network, (x, y) = _network(), _batch()
    penalty = LossGradientPenalty(1.0)
    weight = network.get_parameter("0.weight")
    (gradient,) = torch.autograd.grad(penalty(network, x, y), weight)
    direction = torch.randn_like(weight)
    sides = []
    for sign in (1, -1):
        with torch.no_grad():
            weight += sign * 1e-5 * direction
        sides.append(float(penalty(network, x, y).detach()))
        with torch.no_grad():
            weight -= sign * 1e-5 * direction
    slope = (sides[0] - sides[1]) / 2e-5
    assert math.isclose(float((gradient * direction).sum()), slope, rel_tol=1e-6)


def test_regression_and_a_loss_of_ones_own() -> None:
    network, (x, _) = _network(), _batch()
    targets = torch.zeros(6, 4, dtype=torch.float64)
    by_default = LossGradientPenalty(1.0)(network, x, targets)
    torch.testing.assert_close(
        LossGradientPenalty(1.0, loss=nn.MSELoss())(network, x, targets), by_default
    )
    doubled = LossGradientPenalty(1.0, loss=lambda f, y: 2 * F.mse_loss(f, y))(network, x, targets)
    torch.testing.assert_close(doubled, 4 * by_default)


def test_every_third_call_has_three_times_the_strength_and_continues_when_resumed() -> None:
    network, (x, y) = _network(), _batch()
    value = float(LossGradientPenalty(1.0)(network, x, y).detach())
    lazy, resumed = LossGradientPenalty(1.0, every=3), LossGradientPenalty(1.0, every=3)
    values = [float(lazy(network, x, y).detach()) for _ in range(4)]
    assert values[1:3] == [0.0, 0.0] and values[0] == pytest.approx(3 * value) == values[3]
    resumed.load_state_dict(lazy.state_dict())
    assert [float(resumed(network, x, y).detach()) for _ in range(3)] == [
        0.0,
        0.0,
        pytest.approx(3 * value),
    ]


def test_wrong_use_is_explained() -> None:
    with pytest.raises(InvalidInput, match=r"floating-point inputs; got torch\.int64"):
        InputJacobianPenalty(1.0)(nn.Embedding(4, 4), torch.zeros(2, 1, dtype=torch.int64))
    with pytest.raises(InvalidInput, match=r"got none\. Call penalty\.forward_with_penalty"):
        LossGradientPenalty(1.0)(_network(), _batch()[0])


def test_floats_of_zero_and_one_need_a_loss_or_the_type_of_their_task() -> None:
    network = nn.Linear(4, 3).double()
    x = torch.randn(6, 4, dtype=torch.float64)
    y = (torch.arange(18).reshape(6, 3) % 2).double()
    loss = nn.functional.binary_cross_entropy_with_logits
    gradients = torch.autograd.grad(loss(network(x), y), list(network.parameters()))
    expected = sum(gradient.square().sum() for gradient in gradients)
    with pytest.raises(InvalidInput, match="several labels"):
        LossGradientPenalty(1.0)(network, x, y)
    with pytest.raises(InvalidInput, match="two classes"):
        LossGradientPenalty(1.0)(nn.Linear(4, 1).double(), x, y[:, 0])
    torch.testing.assert_close(LossGradientPenalty(1.0)(network, x, y.bool()), expected)
    torch.testing.assert_close(LossGradientPenalty(1.0, loss=loss)(network, x, y), expected)
