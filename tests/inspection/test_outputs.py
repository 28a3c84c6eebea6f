"""Looking at a network leaves no trace."""

from __future__ import annotations

import random

import numpy
import pytest
import torch
from torch import nn

from cases import CASES, each
from gapscope.base.errors import GapscopeError, InvalidInput
from gapscope.inspection.outputs import check_labels, checked_outputs, inspection_mode, network_outputs, prepare_inputs


def some_network() -> nn.Sequential:
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.ReLU(), nn.Linear(4, 2))
    network[1].eval()  # a frozen batch norm inside a network that trains
    network[0].weight.requires_grad_(False)
    network[4].weight.grad = torch.ones(2, 4)
    return network


def everything(network: nn.Module) -> list[object]:
    return [
        [module.training for module in network.modules()],
        [(p.requires_grad, None if p.grad is None else p.grad.clone()) for p in network.parameters()],
        [tensor.clone() for tensor in network.state_dict().values()],
        torch.get_rng_state(),
        tuple(random.getstate()[1]),
        numpy.random.get_state()[1].tolist(),  # type: ignore[union-attr]
    ]


def same(first: object, second: object) -> bool:
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second


@pytest.mark.parametrize("failing", [False, True])
def test_everything_is_restored(failing: bool) -> None:
    network = some_network()
    before, gradient = everything(network), network[4].weight.grad
    try:
        with torch.no_grad(), inspection_mode(network, mode="train"):
            assert all(module.training for module in network.modules())
            network[0].weight.requires_grad_(True)
            network(torch.randn(5, 3)).sum().backward()  # gradients are on again, buffers and random states move
            random.random()
            numpy.random.rand()
            if failing:
                raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert same(everything(network), before) and network[4].weight.grad is gradient


def test_a_replaced_buffer_is_put_back() -> None:
    network = some_network()
    buffer = network[1].running_mean
    with inspection_mode(network):
        network[1].running_mean = torch.ones(4)
    assert network[1].running_mean is buffer


def test_changed_weights_are_noticed() -> None:
    network = some_network()
    message = "must leave the weights as they are"
    with pytest.raises(GapscopeError, match=message), inspection_mode(network), torch.no_grad():
        network.get_parameter("4.weight").add_(1)


def test_inference_mode_is_left() -> None:
    network = some_network()
    with torch.inference_mode():
        x = torch.randn(5, 3)
        with inspection_mode(network):
            outputs = network(prepare_inputs(network, x))
            (gradient,) = torch.autograd.grad(outputs.sum(), network.get_parameter("4.weight"))
    assert gradient.shape == (2, 4)


def test_wrong_inputs_and_outputs_get_one_sentence() -> None:
    with pytest.raises(InvalidInput, match=r"must have the same dtype; got torch.float64 and torch.float32"):
        network_outputs(some_network().eval(), torch.randn(5, 3).double())
    with pytest.raises(InvalidInput, match=r"shape \[n, K\] for n inputs, here \[5, K\]; got \[5, 2, 1\]"):
        checked_outputs(torch.zeros(5, 2, 1), 5)
    with pytest.raises(InvalidInput, match="got tuple"):
        checked_outputs((torch.zeros(5, 2),), 5)
    with pytest.raises(InvalidInput, match="smaller than the network's number of outputs, 2; got 4"):
        check_labels(torch.tensor([0, 4]), 2)


def test_chunks_do_not_change_outputs() -> None:
    network, x = some_network().eval().double(), torch.randn(11, 3).double()
    with inspection_mode(network):
        assert torch.allclose(network_outputs(network, x, chunk_size=3), network_outputs(network, x), atol=1e-14)


@each()
def test_every_network_gives_its_own_outputs_in_any_chunks_and_is_left_as_it_was(name: str) -> None:
    network, samples = CASES[name].make(7, dtype=torch.float64, mode="train")
    alone = CASES[name].make(7, dtype=torch.float64)[0](samples.inputs)
    before = everything(network)
    with inspection_mode(network):
        found = network_outputs(network, samples.inputs, chunk_size=3)
    assert same(everything(network), before)
    torch.testing.assert_close(found, alone)
