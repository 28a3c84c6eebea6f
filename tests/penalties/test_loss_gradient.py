from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput
from gapscope.penalties.base import make_penalty
from gapscope.penalties.gradient_norms import LossGradientPenalty


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)).double()


def _batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(6, 3, dtype=torch.float64, generator=generator), torch.randint(0, 4, (6,), generator=generator)


def test_by_the_inputs_it_is_the_mean_over_samples() -> None:
    network, (x, y) = _network(), _batch()
    value = LossGradientPenalty(0.5, wrt="inputs")(network, x, y)
    squares = []
    for one, label in zip(x.split(1), y.split(1), strict=True):
        one.requires_grad_()
        squares.append(torch.autograd.grad(F.cross_entropy(network(one), label), one)[0].square().sum())
    torch.testing.assert_close(value, 0.5 * torch.stack(squares).mean())
    assert not x.requires_grad


@pytest.mark.parametrize("wrt", ["parameters", "inputs"])
def test_gradient_by_finite_differences(wrt: str) -> None:
    network, (x, y) = _network(), _batch()
    penalty = LossGradientPenalty(1.0, wrt=wrt)  # type: ignore[arg-type]
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
    torch.testing.assert_close(LossGradientPenalty(1.0, loss=nn.MSELoss())(network, x, targets), by_default)
    doubled = LossGradientPenalty(1.0, loss=lambda f, y: 2 * F.mse_loss(f, y))(network, x, targets)
    torch.testing.assert_close(doubled, 4 * by_default)


def test_frozen_and_unused_parameters_do_not_count() -> None:
    network, (x, y) = _network(), _batch()
    network.register_parameter("unused", nn.Parameter(torch.ones(2, dtype=torch.float64)))
    whole = LossGradientPenalty(1.0)(network, x, y)
    network.get_parameter("0.weight").requires_grad_(False)
    part = LossGradientPenalty(1.0)(network, x, y)
    assert float(part.detach()) < float(whole.detach())


def test_every_third_call_has_three_times_the_strength_and_goes_on_when_resumed() -> None:
    network, (x, y) = _network(), _batch()
    value = float(LossGradientPenalty(1.0)(network, x, y).detach())
    lazy, resumed = LossGradientPenalty(1.0, every=3), LossGradientPenalty(1.0, every=3)
    seen = [float(lazy(network, x, y).detach()) for _ in range(4)]
    assert seen[1:3] == [0.0, 0.0] and seen[0] == pytest.approx(3 * value) == seen[3]
    resumed.load_state_dict(lazy.state_dict())
    assert [float(resumed(network, x, y).detach()) for _ in range(3)] == [0.0, 0.0, pytest.approx(3 * value)]
    with pytest.raises(InvalidInput, match="every must lie in"):
        LossGradientPenalty(1.0, every=0)


def test_wrong_use_is_explained() -> None:
    network, (x, y) = _network(), _batch()
    with pytest.raises(InvalidInput, match=r"given targets; got none\. Use penalty\.forward_with_penalty"):
        LossGradientPenalty(1.0)(network, x)
    with pytest.raises(InvalidInput, match=r"must have floating-point inputs; got torch\.int64"):
        LossGradientPenalty(1.0, wrt="inputs")(nn.Embedding(4, 4), y, y)
    with pytest.raises(InvalidInput, match="wrt must be one of 'parameters', 'inputs'; got 'input'"):
        make_penalty("loss_gradient", {"strength": 1.0, "wrt": "input"})
    with pytest.raises(InvalidInput, match="strength of LossGradientPenalty must lie in"):
        LossGradientPenalty(-1.0)
