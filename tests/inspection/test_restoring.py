"""Looking at a network leaves no trace; other tensors are seen in place of its own."""

from __future__ import annotations

import random
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gapscope.base.errors import GapscopeError, InvalidInput
from gapscope.base.targets import check_labels
from gapscope.inspection.outputs import (
    checked_outputs,
    inspection_mode,
    network_outputs,
    prepare_inputs,
)
from gapscope.inspection.restoring import preserve_state
from gapscope.inspection.substitution import ParameterSubstitution, cast_like, cast_network
from gapscope.measures.measurement import measure
from gapscope.penalties.gradient_norms import LossGradientPenalty
from gapscope.penalties.gradient_similarity import GradientSimilarityPenalty
from support.cases import CASES, each


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


def test_traces_of_a_forward_pass_are_gone_and_gradients_stay() -> None:
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


def some_network() -> nn.Sequential:
    network = nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.ReLU(), nn.Linear(4, 2)
    )
    network[1].eval()  # a frozen batch norm inside a network that trains
    network[0].weight.requires_grad_(False)
    network[4].weight.grad = torch.ones(2, 4)
    return network


def everything(network: nn.Module) -> list[object]:
    return [
        [module.training for module in network.modules()],
        [
            (p.requires_grad, None if p.grad is None else p.grad.clone())
            for p in network.parameters()
        ],
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
            # gradients are on again, buffers and random states move
            network(torch.randn(5, 3)).sum().backward()
            random.random()
            numpy.random.rand()
            if failing:
                raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert same(everything(network), before) and network[4].weight.grad is gradient


def test_changed_weights_are_noticed() -> None:
    network = some_network()
    message = "it must not change them"
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
    with pytest.raises(InvalidInput, match=r"got torch.float64 and torch.float32"):
        network_outputs(some_network().eval(), torch.randn(5, 3).double())
    with pytest.raises(InvalidInput, match=r"got \[5, 2, 1\]"):
        checked_outputs(torch.zeros(5, 2, 1), 5)
    with pytest.raises(InvalidInput, match="a tuple of 2"):
        checked_outputs((torch.zeros(5, 2), torch.zeros(5, 2)), 5)
    with pytest.raises(InvalidInput, match="classes, 2; got 4"):
        check_labels(torch.tensor([0, 4]), 2)


@each()
def test_every_network_gives_its_own_outputs_in_any_chunks_and_is_left_as_it_was(name: str) -> None:
    network, samples = CASES[name].make(7, dtype=torch.float64, mode="train")
    alone = CASES[name].make(7, dtype=torch.float64)[0](samples.inputs)
    before = everything(network)
    with inspection_mode(network):
        result = network_outputs(network, samples.inputs, chunk_size=3)
    assert same(everything(network), before)
    torch.testing.assert_close(result, alone)


DOUBLE = torch.float64


class Constants(nn.Module):
    """Numbers in single precision in every place but the parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.plain = torch.randn(3, 3)
        self.listed = [torch.randn(3)]

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x).float() @ self.plain + self.listed[0] + torch.ones(3) * torch.tensor(0.5)
        h = h + torch.zeros(3, dtype=torch.float32).add_(1.0)
        return h.to(torch.float32).to(self.plain.dtype)


def test_everything_is_computed_in_the_requested_precision() -> None:
    network = Constants()
    x = torch.randn(4, 3, dtype=DOUBLE)
    with cast_network(network, DOUBLE):
        result = network(x)
    weight, bias = network.layer.weight.double(), network.layer.bias.double()
    expected = F.linear(x, weight, bias) @ network.plain.double() + network.listed[0].double() + 1.5
    assert result.dtype == DOUBLE
    torch.testing.assert_close(result, expected, rtol=1e-14, atol=1e-14)
    assert network.plain.dtype == network.layer.weight.dtype == torch.float32


def test_a_parameter_is_replaced_in_lists_closures_and_recurrent_layers() -> None:
    network: Any = nn.LSTM(2, 3, batch_first=True).double()
    x = torch.randn(2, 4, 2, dtype=DOUBLE)
    doubled = [(p, 2 * p.detach()) for p in network.parameters()]
    with ParameterSubstitution(doubled):
        result = network(x)[0]
        assert torch.equal(network.weight_ih_l0 + 0, doubled[0][1])
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(2)
    torch.testing.assert_close(result, network(x)[0])


def test_writing_to_a_buffer_writes_to_its_stand_in() -> None:
    network: Any = nn.BatchNorm1d(2)
    with cast_network(network, DOUBLE):
        network(torch.randn(5, 2, dtype=DOUBLE) + 3)
        network.running_mean.add_(1.0)
    assert not bool(network.running_mean.any())


@pytest.mark.parametrize("given", [torch.complex64, torch.float32])
def test_complex_numbers_stay_complex(given: torch.dtype) -> None:
    network = nn.Linear(2, 2, dtype=given)
    with cast_network(network, DOUBLE) as substituted:
        result = network(torch.randn(3, 2, dtype=DOUBLE).to(given))
    assert (
        result.dtype
        == substituted[network.weight].dtype
        == (torch.complex128 if given.is_complex else DOUBLE)
    )


def test_a_tensor_is_converted_inside_a_substitution_too() -> None:
    """There it says the precision in which it is seen, not its own."""
    x = torch.ones(2)
    with ParameterSubstitution([], DOUBLE):
        converted = cast_like(x, DOUBLE)
    assert converted.dtype == DOUBLE and x.dtype == torch.float32


def test_hooks_of_weights_are_kept_out_of_derivatives_and_stay() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x, y = torch.randn(12, 3, dtype=torch.float64), torch.arange(12) % 2
    names = [
        "gradient_norm", "gradient_noise", "hessian_trace", "fisher_rao_norm", "connection_sensitivity",
        "gradient_disparity", "hessian_top_eigenvalue", "ntk_trace", "fisher_trace",
    ]  # fmt: skip
    penalties = LossGradientPenalty(1.0), GradientSimilarityPenalty(1.0, method="exact")

    def numbers() -> list[float]:
        readings = measure(network, (x, y), names, progress=False)
        values = [penalty(network, x, y).item() for penalty in penalties]
        return [*readings.values().values(), *values]

    expected = numbers()
    for layer in (network[0], network[2]):
        layer.weight.register_hook(torch.zeros_like)  # type: ignore[operator, union-attr]
    assert numbers() == pytest.approx(expected, rel=1e-9)
    network(x).sum().backward()
    assert not network[0].weight.grad.any()  # type: ignore[union-attr, operator]
