"""Regressors whose outputs are logarithms or standardized: the first action is their unit, not the training."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gapscope as gs
from gapscope.checks import CheckResult
from gapscope.checks.output_unit import find_output_unit


def line(weight: float, bias: float) -> nn.Module:
    network = nn.Linear(3, 1)
    with torch.no_grad():
        network.weight.zero_()
        network.weight[0, 0] = weight
        network.bias.fill_(bias)
    return network


def checked(targets: torch.Tensor, x: torch.Tensor, **options: object) -> CheckResult:
    network = line(1.0, 1.0)
    initial = {name: tensor + 1 for name, tensor in network.state_dict().items()}
    return gs.check(
        network,
        (x[:200], targets[:200]),
        test=(x[200:], targets[200:]),
        initial_state=initial,
        only=["GS105", "GS303", "GS401"],
        ignore=["GS107"],  # one column is the target but for the unit
    )


@pytest.mark.parametrize("is_log", [True, False])
def test_outputs_in_another_unit_are_the_first_finding(is_log: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(400, 3)
    targets = x[:, 0] * 30 + 200
    if is_log:
        targets = torch.poisson((x[:, 0] + 1).exp())
    else:
        x = x * 1e-3 + torch.tensor([0.0, 50.0, 0.0])  # unscaled, in case that comes first
        targets = x[:, 0] * 3e4 + 200
    result = checked(targets, x)
    first = result.findings[0]
    assert first.code == "GS401"
    assert "wrap the network" in first.action
    assert ("torch.exp" in first.action) == is_log
    assert ("exp(outputs)" in first.evidence) == is_log
    assert "another unit than the targets" in result.headline
    assert result.account is not None
    assert "training" not in [entry.name for entry in result.account.entries]
    assert result.account.metrics["cost_unit_of_the_outputs"] == first.cost
    assert not first.fixes


def test_regressors_that_predict_or_do_not_follow_have_no_other_unit() -> None:
    torch.manual_seed(0)
    y = torch.randn(100, 1)
    assert find_output_unit(y + 0.1, y, 0.99) is None
    assert find_output_unit(torch.randn(100, 1), y, -1.0) is None
    assert find_output_unit(-y, y, -3.0) is None
    unit = find_output_unit(3 * y + 5, y, -30.0)
    assert unit is not None and not unit.is_log and unit.r_squared == pytest.approx(1.0)


def test_a_network_that_may_be_untrained_has_a_hint() -> None:
    torch.manual_seed(0)
    x = torch.randn(100, 3)
    result = gs.check(line(1.0, 0.0), (x, x[:, 0] * 30 + 200), only=["GS401"], ignore=["GS107"])
    assert "unit may not be that of the targets" in result.not_checked[0].reason
