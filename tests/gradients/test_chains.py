"""Chains of linear layers are read off the graph of each pass: nothing that was seen before can be used again."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.functional import empirical_ntk, ntk_trace
from gapscope.gradients import layer_rules
from gapscope.gradients.recording import record_forward
from gapscope.inspection.known_layers import ELEMENTWISE, known_layers
from gradients.reference import check_traces, dense_jacobian, gradient_of


def fully_connected(activation: nn.Module | None = None) -> Any:
    torch.manual_seed(0)
    hidden = [
        nn.Linear(6, 7),
        activation or nn.ReLU(),
        nn.Sequential(nn.Linear(7, 5, bias=False), nn.Tanh()),
    ]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(5, 3)).double()


def images(n: int = 4) -> Tensor:
    return torch.randn(n, 2, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def uses_chain(network: nn.Module, x: Tensor) -> bool:
    return bool(record_forward(network, x)[0].chain)


@pytest.mark.parametrize("kind", ELEMENTWISE, ids=lambda kind: kind.__name__)
def test_values_and_gradients_are_exact_for_every_function(kind: type[nn.Module]) -> None:
    network, x = fully_connected(kind()).eval(), images()
    assert uses_chain(network, x)
    check_traces(network, x)
    jacobian = dense_jacobian(network, x)
    torch.testing.assert_close(
        empirical_ntk(network, x), torch.einsum("ncp,mdp->ncmd", jacobian, jacobian)
    )
    expected = gradient_of(dense_jacobian(network, x, create_graph=True).square().sum(), network)
    penalty = gs.GradientSimilarityPenalty(1.0, method="exact", reduction="sum")
    torch.testing.assert_close(gradient_of(penalty(network, x), network), expected)


@pytest.mark.parametrize("name", ["0.weight", "0.bias", "2.weight", "2.bias", "4.weight", "4.bias"])
def test_frozen_parameters_are_left_out(name: str) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 2)
    ).double()
    network.get_parameter(name).requires_grad_(False)
    x = torch.randn(3, 4, dtype=torch.float64)
    assert uses_chain(network, x)
    check_traces(network, x)


def test_a_layer_that_is_used_twice() -> None:
    layer = nn.Linear(4, 4)
    network, x = (
        nn.Sequential(layer, nn.Tanh(), layer).double(),
        torch.randn(3, 4, dtype=torch.float64),
    )
    assert uses_chain(network, x)
    check_traces(network, x)


def test_weights_of_two_layers_that_are_one_tensor() -> None:
    x = torch.randn(3, 4, dtype=torch.float64)
    network: Any = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).double()
    network[2].weight = network[0].weight
    check_traces(network, x)


def test_inputs_that_need_gradients_end_the_chain_at_the_first_layer() -> None:
    network, x = fully_connected(), images()
    penalty = gs.GradientSimilarityPenalty(1.0, method="exact")
    expected = penalty(network, x)
    torch.testing.assert_close(penalty(network, (x.clone().requires_grad_() * 1.0)), expected)


@contextmanager
def forward_hook(network: Any) -> Iterator[None]:
    handle = network[1].register_forward_hook(lambda *arguments: arguments[-1] * 2)
    yield
    handle.remove()


@contextmanager
def global_hook(network: Any) -> Iterator[None]:
    def double(module: nn.Module, *arguments: Any) -> Any:
        return arguments[-1] * 2 if module is network[1] else None

    handle = nn.modules.module.register_module_forward_hook(double)
    yield
    handle.remove()


@contextmanager
def forward_of_an_instance(network: Any) -> Iterator[None]:
    layer = network[1]
    layer.forward = lambda x: F.linear(x, layer.weight * 2, layer.bias)
    yield
    del layer.forward


@contextmanager
def forward_of_a_class(network: Any) -> Iterator[None]:
    original = nn.Linear.forward
    nn.Linear.forward = lambda self, x: original(self, x) * 2  # type: ignore[method-assign]
    yield
    nn.Linear.forward = original  # type: ignore[method-assign]


@contextmanager
def function_of_torch(network: Any) -> Iterator[None]:
    original = F.linear
    F.linear = lambda x, weight, bias=None: original(x, weight, bias) + original(x, weight)
    yield
    F.linear = original


@contextmanager
def function_of_the_bias(network: Any) -> Iterator[None]:
    original = F.linear
    F.linear = lambda x, weight, bias=None: original(x, weight, None if bias is None else bias * 2)
    yield
    F.linear = original


@contextmanager
def other_layer(network: Any) -> Iterator[None]:
    network[2] = nn.Softmax(dim=1)
    yield


@contextmanager
def other_parameter(network: Any) -> Iterator[None]:
    network[1].weight = nn.Parameter(network[1].weight.detach() * 3)
    yield


@contextmanager
def parametrized(network: Any) -> Iterator[None]:
    nn.utils.parametrizations.weight_norm(network[1])
    yield


@contextmanager
def gradient_hook(network: Any) -> Iterator[None]:
    handle = network[2].register_full_backward_hook(lambda *_: None)
    yield
    handle.remove()


@contextmanager
def frozen_layer(network: Any) -> Iterator[None]:
    network[1].requires_grad_(False)
    yield


# change -> whether the network is still a chain
CHANGES: dict[Callable[[Any], Any], bool] = {
    forward_hook: False,
    global_hook: False,
    forward_of_an_instance: False,
    forward_of_a_class: False,
    function_of_torch: True,
    function_of_the_bias: True,
    other_layer: False,
    other_parameter: True,
    parametrized: False,
    gradient_hook: False,
    frozen_layer: True,
}


@pytest.mark.filterwarnings("ignore:Gradients of individual samples")
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_between_two_calls_is_seen(change: Callable[[Any], Any]) -> None:
    network, x = fully_connected(), images()
    check_traces(network, x)
    with change(network):
        assert bool(known_layers(network)) is CHANGES[change]
        check_traces(network, x)
        expected = gradient_of(
            dense_jacobian(network, x, create_graph=True).square().sum(), network
        )
        penalty = gs.GradientSimilarityPenalty(1.0, method="exact", reduction="sum")
        torch.testing.assert_close(gradient_of(penalty(network, x), network), expected)


@pytest.mark.parametrize("n", [1, 5])
def test_another_size_of_the_batch_between_two_calls(n: int) -> None:
    network = fully_connected()
    check_traces(network, images())
    check_traces(network, images(n))


def test_another_precision_between_two_calls() -> None:
    network, x = fully_connected(), images()
    expected = ntk_trace(network, x)
    assert ntk_trace(network.float(), x.float()) == pytest.approx(expected, rel=1e-5)
    assert uses_chain(network, x.float())
    assert not uses_chain(network.bfloat16(), x.bfloat16())


def test_masks_of_dropout_are_those_of_the_pass() -> None:
    network, x = fully_connected(nn.Dropout(0.5)).train(), images()
    tape, outputs = record_forward(network, x)
    assert tape.chain
    cotangents = torch.eye(3).double()[:, None].expand(3, 4, 3)
    parts = tape.contributions(outputs, cotangents)
    squares = torch.stack([part.square_norms() for part in parts.values()]).sum(0)
    jacobian = [
        torch.stack([gradient_of(v, network, create_graph=True) for v in row]) for row in outputs
    ]
    expected = torch.stack(jacobian).detach().square().sum((1, 2))
    torch.testing.assert_close(squares, expected)
    assert ntk_trace(network, x) == pytest.approx(
        float(ntk_trace(copy.deepcopy(network).eval(), x))
    )
    assert all(module.training for module in network.modules())


def test_positions_casts_and_rules_of_the_user_are_recorded() -> None:
    layers = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)).double()
    assert not uses_chain(layers, images())
    check_traces(layers, images())
    network = fully_connected().float()
    with torch.autocast("cpu", torch.bfloat16):
        assert not uses_chain(network, images().float())


def test_a_rule_of_the_user_takes_the_place_of_the_own(monkeypatch: pytest.MonkeyPatch) -> None:
    network, x = fully_connected(), images()
    monkeypatch.setitem(layer_rules._RULES, nn.Linear, lambda call, gradient: [])
    assert not uses_chain(network, x)


def test_measuring_leaves_modes_and_gradients_as_they_are() -> None:
    network, x = fully_connected().train(), images()
    network[1].eval()
    network(x).sum().backward()
    before = [parameter.grad.clone() for parameter in network.parameters()]
    state = torch.get_rng_state()
    ntk_trace(network, x)
    empirical_ntk(network, x)
    assert [module.training for module in network.children()] == [True, False, True, True, True]
    assert all(
        torch.equal(p.grad, grad) for p, grad in zip(network.parameters(), before, strict=True)
    )
    assert torch.equal(torch.get_rng_state(), state)


def test_weights_that_are_not_finite_raise() -> None:
    network = fully_connected()
    with torch.no_grad():
        network[1].weight[0, 0] = -torch.inf
    with pytest.raises(InvalidInput, match=r"1\.weight"):
        ntk_trace(network, images())


@pytest.mark.parametrize("create_graph", [False, True])
def test_contributions_have_a_graph_only_on_request(create_graph: bool) -> None:
    network, x = fully_connected(nn.Tanh()), images()
    tape, outputs = record_forward(network, x)
    parts = tape.contributions(outputs, torch.ones_like(outputs)[None], create_graph=create_graph)
    rows = [values for part in parts.values() for values in part.dense()]
    assert any(values.requires_grad for values in rows) is create_graph
