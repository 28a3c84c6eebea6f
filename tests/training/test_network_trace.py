"""Monitors of two networks: another one is warned of once, and the same one in another form never is."""

from __future__ import annotations

import copy
import json
import pickle
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import gapscope as gs
from gapscope.base.files import to_json
from gapscope.training.network_trace import trace_of

X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def make_network(seed: int = 0, width: int = 32) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(6, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 2)
        )


def make_monitor(**settings: Any) -> gs.Monitor:
    return gs.Monitor((X, Y), ["loss"], max_time_fraction=None, **settings)


def step(network: nn.Module, n: int = 30) -> None:
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    for _ in range(n):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(X), Y).backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("other", "how"),
    [
        (make_network(0, width=16), "178 weights, before 354"),
        (make_network(1), "correlate with those before"),
        (nn.Sequential(nn.Linear(6, 2, bias=False)), "12 weights"),
    ],
)
def test_another_network_is_warned_of_once_and_noted(other: nn.Module, how: str) -> None:
    monitor = make_monitor()
    monitor.observe(make_network(), 1)
    with pytest.warns(UserWarning, match="2 is of another"):
        monitor.observe(other, 2)
    assert how in monitor.other_network and monitor.other_network in repr(monitor)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monitor.observe(make_network(3, width=5), 3)
    resumed = make_monitor()
    resumed.load_state_dict(json.loads(to_json(monitor.state_dict())))
    assert resumed.other_network == monitor.other_network


def test_a_network_other_than_the_one_before_training_is_warned_of() -> None:
    monitor = make_monitor(alarm="joint")
    monitor.begin(make_network())
    with pytest.warns(UserWarning, match="another network"):
        monitor.observe(make_network(1), 1)


def _averaged(network: nn.Module) -> nn.Module:
    average = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    average.update_parameters(network)
    return average


def _with_head(network: nn.Module) -> nn.Module:
    """The same layers and another one, as an adapter adds it."""
    return nn.Sequential(network, nn.Linear(2, 2))


@pytest.mark.parametrize(
    "form",
    [
        lambda network: network,
        copy.deepcopy,
        DataParallel,
        partial(torch.compile, backend="eager"),
        _averaged,
        _with_head,
    ],
)
def test_other_forms_of_the_trained_network_are_the_same_one(
    form: Callable[[Any], nn.Module],
) -> None:
    monitor, network = make_monitor(alarm="joint"), make_network()
    monitor.begin(network)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for epoch in (1, 2, 3):
            step(network)
            monitor.observe(form(network), epoch)
    assert monitor.other_network == "" and len(monitor.epochs) == 3


class _Scaled(nn.Module):
    """A copy with a parameter of its own."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = copy.deepcopy(network)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * self.network(x)


class _Adapted(nn.Module):
    """A copy of a layer with an update of low rank."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = copy.deepcopy(layer)
        self.down, self.up = nn.Linear(6, 2, bias=False), nn.Linear(2, 32, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.up(self.down(x))


def _with_adapter(network: nn.Module) -> nn.Module:
    first, *others = copy.deepcopy(network).children()
    return nn.Sequential(_Adapted(first), *others)


def _without_parameters(network: nn.Module) -> nn.Module:
    """As quantized layers, whose weights are no parameters."""
    copied = copy.deepcopy(network)
    for layer in copied.modules():
        for name, weight in list(layer.named_parameters(recurse=False)):
            delattr(layer, name)
            layer.register_buffer(name, weight.detach())
    return copied


def _grown(network: nn.Module) -> nn.Module:
    """Other weights by training from ones that were near zero."""
    copied = copy.deepcopy(network)
    with torch.no_grad():
        for weight in copied.parameters():
            weight.copy_(torch.randn_like(weight))
    return copied


@pytest.mark.parametrize("form", [_Scaled, _with_adapter, _without_parameters, _grown])
def test_copies_whose_weights_are_fewer_more_or_far_larger_are_the_same_network(
    form: Callable[[nn.Module], nn.Module],
) -> None:
    network = make_network()
    with torch.no_grad():
        for weight in network.parameters():
            weight.mul_(0.01)
    trace = trace_of(network)
    assert trace.difference(trace_of(form(network))) == ""


def test_another_network_in_a_wrapper_is_told() -> None:
    assert "correlate" in trace_of(make_network()).difference(trace_of(_Scaled(make_network(1))))


def test_a_resumed_network_is_the_same_one() -> None:
    monitor, network = make_monitor(), make_network()
    monitor.observe(network, 1)
    state = json.loads(to_json(monitor.state_dict()))
    step(network)
    for weights, is_other in ((network.state_dict(), False), (make_network(5).state_dict(), True)):
        resumed, again = make_monitor(), make_network(9)
        resumed.load_state_dict(state)
        again.load_state_dict(weights)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            resumed.observe(again, 2)
        assert bool(resumed.other_network) == is_other
    # as stored before traces were part of it
    old = make_monitor()
    old.load_state_dict({name: value for name, value in state.items() if name != "network"})
    old.observe(make_network(5), 2)
    assert old.other_network == ""


def test_a_monitor_that_starts_again_may_have_another_network() -> None:
    monitor = make_monitor()
    for epoch in (1, 2):
        monitor.observe(make_network(), epoch)
    with pytest.warns(UserWarning, match="is reset") as caught:
        monitor.observe(make_network(1), 1)
    assert len(caught) == 1 and monitor.other_network == ""


def test_traces_are_pickled_and_say_nothing_of_few_or_infinite_weights() -> None:
    trace = trace_of(make_network())
    other = trace_of(make_network(1))
    assert pickle.loads(pickle.dumps(trace)).difference(other)
    assert trace_of(nn.Linear(6, 2)).difference(trace_of(nn.Linear(6, 2))) == ""
    assert trace_of(nn.Identity()).difference(trace_of(nn.ReLU())) == ""
    broken = make_network(1)
    with torch.no_grad():
        next(broken.parameters()).fill_(torch.inf)
    assert trace.difference(trace_of(broken)) == ""
