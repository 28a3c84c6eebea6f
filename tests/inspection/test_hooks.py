"""Modules by name and kind, and hooks that leave nothing behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.inspection.hooks import (
    capture_outputs,
    copied_calls,
    forward_hooks,
    module_named,
    record_module_calls,
)
from gradients.reference import Wrapped


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU(inplace=True), nn.Linear(3, 2))


def test_a_wrong_name_names_the_nearest() -> None:
    named = nn.Sequential()
    named.add_module("output", nn.Linear(1, 1))
    with pytest.raises(InvalidInput, match=r"module.*got 'ouput'. Did you"):
        module_named(named, "ouput")
    with pytest.raises(InvalidInput, match="got ''"):
        module_named(named, "")


def test_calls_come_in_the_order_in_which_they_are_made() -> None:
    network = Wrapped(
        lambda net, x: net.last(net.first(x)), last=nn.Linear(3, 2), first=nn.Linear(2, 3)
    )
    calls = record_module_calls(network, torch.zeros(1, 2))
    assert [call.name for call in calls] == ["first", "last"]
    assert calls[1].follows(calls[0]) and not calls[0].follows(calls[1])


def test_calls_hold_what_was_passed_before_it_was_changed_in_place() -> None:
    net, x = network(), torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    first, relu, last = record_module_calls(net, x)
    assert torch.equal(first.output, net[0](x)) and bool((first.output < 0).any())
    assert torch.equal(relu.output, first.output.relu()) and last.follows(relu)
    assert not last.follows(first)
    layer = nn.Linear(2, 3)
    head = Wrapped(lambda net, x: (net.layer(x), x.add_(1))[0], layer=layer)
    with torch.no_grad(), copied_calls({"layer": layer}, before=True) as calls:
        head(x.clone())
    assert torch.equal(calls[0].input, x) and calls[0].output is None


def test_tapped_outputs_are_not_overwritten_by_what_follows() -> None:
    net, x = network(), torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), capture_outputs({"0": net[0]}) as captured:
        outputs = net(x)
    assert torch.equal(captured["0"], net[0](x)) and bool((captured["0"] < 0).any())
    assert torch.equal(outputs, net(x)) and not net[0]._forward_hooks


def test_a_hook_may_change_what_goes_in_and_what_comes_out() -> None:
    net, x = network(), torch.ones(2, 2)
    with forward_hooks({"1": net[1], "2": net[2]}, lambda name, module, inputs, output: output * 2):
        outputs = net(x)
    assert torch.equal(outputs, 2 * net[2](2 * net[1](net[0](x))))
    with forward_hooks({"0": net[0]}, lambda name, module, inputs: (inputs[0] + 1,), before=True):
        outputs = net(x)
    assert torch.equal(outputs, net(x + 1))


def test_hooks_are_removed_where_the_pass_fails() -> None:
    net = network()
    with (
        pytest.raises(RuntimeError),
        forward_hooks({"0": net[0]}, print, before=True),
        forward_hooks({"2": net[2]}, print),
    ):
        net(torch.ones(2, 7))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


@pytest.mark.parametrize("in_place", [True, False])
def test_a_compiled_network_is_watched_too(in_place: bool) -> None:
    net: Any = network()
    x = torch.randn(5, 2)
    compiled: Any = net if in_place else torch.compile(net, backend="eager")
    if in_place:
        net.compile(backend="eager")
    compiled(x)
    assert [type(call.module) for call in record_module_calls(compiled, x)] == [
        nn.Linear,
        nn.ReLU,
        nn.Linear,
    ]
    with capture_outputs({"1": net[1]}, replacement=torch.zeros(5, 3)):
        outputs = compiled(x)
    assert torch.equal(outputs, net[2].bias.expand(5, 2))


def test_inputs_passed_by_keyword_are_inputs() -> None:
    layers = {"first": nn.Linear(2, 3), "last": nn.Linear(3, 2)}
    plain = Wrapped(lambda net, x: net.last(net.first(x)), **layers)
    by_name = Wrapped(lambda net, x: net.last(input=net.first(input=x)), **layers)
    x = torch.randn(4, 2)

    def double(name: str, module: nn.Module, inputs: Any) -> Any:
        return tuple(2 * value for value in inputs)

    doubled = layers["last"](2 * layers["first"](2 * x))
    for measured in (plain, by_name):
        with forward_hooks(layers, double, before=True):
            assert torch.equal(measured(x), doubled)
    assert torch.equal(gs.embed(by_name, x), layers["first"](x))
    assert torch.equal(gs.embed(layers["first"], {"a": 2 * x, "input": x}), x)
