"""Norms of weights that layers compute: those of a network with the same weights as parameters."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm

import gapscope as gs
from gapscope.base.errors import NotMeasurable
from gapscope.inspection.computed_weights import with_plain_weights

NAMES = ["operator_norms", "spectral_complexity", "path_norm", "synaptic_flow", "power_law_alpha"]
X = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
DATA = X, torch.arange(12) % 3


def plain() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(5, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 3)
    )


def old_weight_norm(layer: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weight_norm(layer)
    with torch.no_grad():
        layer.weight_v.mul_(7)


def new_weight_norm(layer: Any) -> None:
    parametrizations.weight_norm(layer)
    with torch.no_grad():
        layer.parametrizations.weight.original1.mul_(7)


def as_buffer(layer: Any) -> None:
    values = layer.weight.detach()
    del layer.weight
    layer.register_buffer("weight", values)


WAYS: dict[str, Callable[[Any], Any]] = {
    "weight norm, hook": old_weight_norm,
    "weight norm": new_weight_norm,
    "spectral norm, hook": spectral_norm,
    "spectral norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "pruned": lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
}


def computed(way: str) -> nn.Sequential:
    network = plain()
    for layer in (network[0], network[2]):
        WAYS[way](layer)
    network(X).sum().backward()  # also the power iteration of spectral norm, in training mode
    return network


def same_function(network: Any) -> nn.Sequential:
    network = network.eval()
    network(X)
    result = plain().eval()
    for mine, theirs in zip(result, network, strict=True):
        if isinstance(mine, nn.Linear):
            mine.load_state_dict({"weight": theirs.weight, "bias": theirs.bias})
    assert torch.allclose(result(X), network(X), atol=1e-6)
    return result


@pytest.mark.parametrize("way", WAYS)
def test_norms_are_those_of_the_operators(way: str) -> None:
    network = computed(way)
    state = copy.deepcopy(network.state_dict())
    got = gs.measure(network, DATA, NAMES, time_budget=None).values()
    assert network.training
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, state[name]), name
    network(X).sum().backward()  # the network computes its weights as before
    network.load_state_dict(state)
    expected = gs.measure(same_function(network), DATA, NAMES, time_budget=None).values()
    assert got == pytest.approx(expected, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("way", ["weight norm, hook", "weight norm", "pruned"])
def test_distances_are_those_between_operators(way: str) -> None:
    network = computed(way)
    initial = copy.deepcopy(network.state_dict())
    start = same_function(copy.deepcopy(with_plain_weights(network))).state_dict()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(
                0.1 * torch.rand(parameter.shape, generator=torch.Generator().manual_seed(2))
            )
    name = "spectral_distance_complexity"
    got = gs.measure(network, DATA, name, initial_state=initial, time_budget=None).values()
    other = gs.measure(
        same_function(network), DATA, name, initial_state=start, time_budget=None
    ).values()
    assert got == pytest.approx(other, rel=1e-4)


def test_a_weight_is_trainable_if_a_part_of_it_is() -> None:
    network = computed("weight norm")
    network[0].requires_grad_(False)
    names = {name for name, p in with_plain_weights(network).named_parameters() if p.requires_grad}
    assert names == {"2.weight", "2.bias", "4.weight", "4.bias"}
    assert with_plain_weights(same := plain()) is same


def test_paths_through_a_buffer() -> None:
    network = plain()
    expected = gs.measure(network, DATA, "path_norm", time_budget=None).values()
    as_buffer(network[2])
    assert gs.measure(network, DATA, "path_norm", time_budget=None).values() == expected


class Generated(nn.Module):
    """A layer whose weight the network computes in its forward function."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(5, 3), nn.Parameter(torch.ones(3, 5))
        del self.layer.weight

    def forward(self, x: Tensor) -> Tensor:
        self.layer.weight = self.scale.tanh()  # type: ignore[assignment]
        return self.layer(x)


def test_other_computed_weights_are_refused() -> None:
    for name in ("operator_norms", "path_norm"):
        with pytest.raises(NotMeasurable, match="'layer'"):
            gs.measure(Generated(), DATA, name, time_budget=None)
