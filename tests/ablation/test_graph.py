from __future__ import annotations

import torch
from torch import Tensor, nn

from ablation.some_networks import Functional, Untraceable, initialized, noise
from gapscope.ablation.layers import TracedGraph, crossing, descendants, extract_subgraph, trace


def traced(network: nn.Module) -> TracedGraph:
    found = trace(network)
    assert found is not None
    return found


def test_tracing_leaves_nothing_behind() -> None:
    network = initialized(Functional)
    network(noise(2, 1, 8, 8))
    seen, keys = network.seen, list(vars(network))
    traced(network)
    assert network.seen is seen and list(vars(network)) == keys


def test_what_cannot_be_traced_gives_none() -> None:
    assert trace(initialized(Untraceable)) is None

    class Two(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"a": x}

    assert trace(Two()) is None


def test_labels_and_names() -> None:
    network = initialized(Functional)
    found = traced(network)
    labels = [found.label(node) for node in found.graph.nodes]
    assert {"first", "second", "head", "relu", "relu_1"} <= set(labels)
    first = found.find("first")
    assert first is not None and found.module(first) is network.first
    assert found.find("relu") is None, "the module is called twice"
    again = found.find("relu_1")
    assert again is not None and again in descendants([first]) and found.find("nothing") is None


def test_crossing_holds_what_passes_a_cut() -> None:
    class Skips(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(3, 3), nn.Linear(3, 2)
            self.constant = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.outer(self.inner(x) + 2 * x + 3 * self.constant).view(x.shape[0], -1)

    network = initialized(Skips)
    found = traced(network)
    site = found.find("inner")
    assert site is not None
    passing = crossing(found, site)
    assert [found.function_name(node) for node in passing] == ["mul", "getitem"], "no constants, no inner nodes"
    tail, used = extract_subgraph(found, [site, *passing], [found.output])
    assert used == [True, True, True]
    x = noise(4, 3)
    (outputs,) = tail(network.inner(x), 2 * x, 4)
    assert torch.equal(outputs, network(x))
