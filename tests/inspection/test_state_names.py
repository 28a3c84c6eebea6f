"""Initial states of wrapped networks, and of networks whose wrapper is measured."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.inspection.state_names import renamed_state

X, Y = torch.randn(20, 4), torch.arange(20) % 2


class Lit(nn.Module):
    """Network in a module with a loss, as of Lightning."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.model, self.loss = network, nn.CrossEntropyLoss(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)


def distance(network: nn.Module, state: dict[str, Tensor]) -> float:
    gs.check(network, (X, Y), initial_state=state, only=["GS303"])
    name = "distance_from_initialization"
    return gs.measure(network, (X, Y), [name], initial_state=state)[name].value


@pytest.mark.parametrize("wrapper", [AveragedModel, Lit, nn.DataParallel])
def test_a_state_before_training_is_of_the_wrapper_or_of_its_network(
    wrapper: type[nn.Module],
) -> None:
    network = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    wrapped = wrapper(network)
    inner = next(part for part in wrapped.children() if isinstance(part, nn.Sequential))
    before = {
        name: t + (1 if t.is_floating_point() else 0) for name, t in inner.state_dict().items()
    }
    outside = {
        name: t + (1 if t.is_floating_point() else 0) for name, t in wrapped.state_dict().items()
    }
    expected = sum(parameter.numel() for parameter in network.parameters()) ** 0.5
    for subject in (wrapped, inner):
        for state in (before, outside, {f"_orig_mod.{name}": t for name, t in outside.items()}):
            assert distance(subject, state) == pytest.approx(expected, rel=1e-4)


def test_two_parts_that_fit_are_ambiguous() -> None:
    network = nn.Linear(4, 2)
    state = {f"{part}.{name}": t for part in ("a", "b") for name, t in network.state_dict().items()}
    assert renamed_state(network, state) == state
    with pytest.raises(InvalidInput, match=r"a\.weight"):
        gs.check(network, (X, Y), initial_state=state, only=["GS303"])
