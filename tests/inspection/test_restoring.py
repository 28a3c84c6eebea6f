"""A network is put back attribute by attribute, whatever its forward pass does to it."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gapscope.inspection import restoring
from gapscope.inspection.outputs import inspection_mode
from gapscope.inspection.restoring import preserve_state


class Restless(nn.Module):
    """A forward pass that leaves traces everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("seen", torch.zeros(2))
        self.again = self.seen  # the same buffer under a second name
        self.kept: list[Tensor] = []
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.kept.append(x)
        self.last = x
        seen: Any = self.seen
        seen.resize_(len(x)).fill_(7.0)
        if "late" not in self._buffers:
            self.register_buffer("late", torch.ones(1))
        random.random()
        return self.layer(x)


def test_traces_of_a_forward_pass_are_gone_and_gradients_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    # Python's own draws are put back only where no other thread may have made them
    monkeypatch.setattr(restoring, "is_only_thread", lambda: True)
    network: Any = Restless()
    network.layer.weight.grad = gradient = torch.ones(2, 3)
    before, state, kept, seen = dict(vars(network)), random.getstate(), network.kept, network.seen
    with inspection_mode(network):
        network(torch.zeros(5, 3))
        assert network.calls == 1 and len(network.seen) == 5
    assert vars(network).keys() == before.keys() and network.calls == 0
    assert network.kept is kept and kept == []
    assert network.seen is seen is network.again and torch.equal(seen, torch.zeros(2))
    assert list(network._buffers) == ["seen"] and network.layer.weight.grad is gradient
    assert random.getstate() == state


def test_replaced_parameters_children_and_hooks_are_put_back() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    weight, child = network[0].weight, network[1]
    with preserve_state(network):
        network[0].weight = nn.Parameter(torch.zeros(2, 2))
        network[1] = nn.ReLU()
        network.register_forward_hook(lambda *_: None)
    assert network[0].weight is weight and network[1] is child and not network._forward_hooks
