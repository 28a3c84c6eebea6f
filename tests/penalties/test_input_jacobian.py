from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import jacrev, vmap

from gapscope.base.errors import InvalidInput
from gapscope.penalties.base import make_penalty
from gapscope.penalties.gradient_norms import InputJacobianPenalty
from gradients.reference import gradient_of


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)).double()


def _inputs() -> Tensor:
    return torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def _square(network: nn.Module, x: Tensor) -> Tensor:
    return vmap(jacrev(lambda one: network(one[None])[0]))(x).square().sum()


def test_exact_value_and_gradient() -> None:
    network, x = _network(), _inputs()
    expected = _square(network, x)
    value = InputJacobianPenalty(0.5, method="exact", reduction="sum")(network, x)
    torch.testing.assert_close(value, 0.5 * expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(
        gradient_of(value, network), 0.5 * gradient_of(expected, network), rtol=1e-10, atol=1e-12
    )
    mean = InputJacobianPenalty(0.5, method="exact")(network, x)
    torch.testing.assert_close(mean, value / 24)


@pytest.mark.parametrize("probe", ["class", "rademacher"])
def test_probes_are_unbiased(probe: Any) -> None:
    network, x = _network(), _inputs()
    penalty = InputJacobianPenalty(1.0, probe=probe)
    draws = torch.stack([penalty(network, x).detach() for _ in range(400)])
    expected = InputJacobianPenalty(1.0, method="exact")(network, x).detach()
    assert abs(float(draws.mean() - expected)) < 4 * float(draws.std()) / 20
    assert float(draws.std()) > 0


def test_state_is_resumed() -> None:
    network, x = _network(), _inputs()
    penalty = InputJacobianPenalty(1.0)
    penalty(network, x)
    state = penalty.state_dict()
    following = penalty(network, x)
    resumed = InputJacobianPenalty(1.0, seed=5)
    resumed.load_state_dict(state)
    assert torch.equal(resumed(network, x), following)


def test_wrong_use_is_explained() -> None:
    with pytest.raises(InvalidInput, match=r"must have floating-point inputs; got torch\.int64"):
        InputJacobianPenalty(1.0)(nn.Embedding(4, 4), torch.zeros(2, 1, dtype=torch.int64))
    with pytest.raises(InvalidInput, match="probe must be one of 'class', 'rademacher'; got 'batch_sum'"):
        make_penalty("input_jacobian", {"strength": 1.0, "probe": "batch_sum"})
