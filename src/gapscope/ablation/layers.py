"""Default ablation layer: the activation of the last convolution."""

from __future__ import annotations

from itertools import takewhile

from torch import Tensor, fx, nn

from gapscope.ablation.graph import TracedGraph, ancestors, descendants
from gapscope.base.errors import NotMeasurable
from gapscope.inspection.hooks import ACTIVATIONS, Weighted, kind, record_module_calls

_CONVOLUTIONS = frozenset({"conv1d", "conv2d", "conv3d"})
_GATES = frozenset({"sigmoid", "hardsigmoid"})


def _kind(traced: TracedGraph, node: fx.Node) -> str:
    """Return the kind of a node (subclasses of convolutions and linear layers included)."""
    module = traced.module(node)
    if isinstance(module, nn.Linear):
        return "linear"
    if isinstance(module, Weighted):
        return f"conv{module.weight.ndim - 2}d"
    return kind(traced.function_name(node))


def _is_activation(traced: TracedGraph, node: fx.Node) -> bool:
    name = _kind(traced, node)
    if name in _GATES and node.users and all(_kind(traced, user) == "mul" for user in node.users):
        return False
    return name in ACTIVATIONS


def _weighted(traced: TracedGraph) -> list[fx.Node]:
    used = ancestors([traced.output]) & descendants([traced.input])
    return [node for node in traced.graph.nodes if node in used and _kind(traced, node) in _CONVOLUTIONS | {"linear"}]


def default_module(network: nn.Module, x: Tensor) -> str:
    """Return the default ablation module of a network that cannot be traced.

    It follows from the order in which modules are called; functional activations are missed, and a sigmoid,
    which might be a gate, is none.

    Raises:
        NotMeasurable: No activation module is called between the last hidden layer and the next layer with weights.
    """
    made = record_module_calls(network, x[:1])
    *hidden, _ = [i for i, call in enumerate(made) if isinstance(call.module, Weighted)] or [0]
    last = next((i for i in reversed(hidden) if not isinstance(made[i].module, nn.Linear)), max(hidden, default=-1))
    behind = takewhile(lambda call: not isinstance(call.module, Weighted), made[last + 1 :])
    for call in behind if hidden else ():
        if kind(type(call.module).__name__).removesuffix("activation") in ACTIVATIONS - _GATES:
            return call.name
    raise NotMeasurable(
        "The layer to ablate could not be found by itself: the network's forward cannot be traced, and no activation "
        "module is called behind its last hidden layer; pass layers= with the name of the module whose units are meant."
    )


def default_site(traced: TracedGraph) -> fx.Node:
    """Return the activation of the last convolution, or else of the last hidden layer.

    The last convolution or linear layer of all is the network's head and no hidden layer. The activation is the first
    one behind the layer, past normalization, pooling, dropout and residual sums, before the next layer with weights: in
    a residual network the activation after the last sum. A sigmoid that only multiplies something is a gate.

    Raises:
        NotMeasurable: There is no hidden layer, or no activation follows the last one.
    """
    *hidden, _ = _weighted(traced) or [traced.input]
    if not hidden:
        raise NotMeasurable(
            "Unit ablation needs a hidden layer before the network's last layer; found none. "
            "Pass layers= with the name of the module whose units are to be ablated."
        )
    convolutions = [node for node in hidden if _kind(traced, node) in _CONVOLUTIONS]
    last = (convolutions or hidden)[-1]
    behind = descendants([last], stop=set(_weighted(traced)) - {last})
    for node in traced.graph.nodes:
        if node in behind and _is_activation(traced, node):
            return node
    raise NotMeasurable(
        f"No activation follows the last hidden layer '{traced.label(last)}' before the next layer with weights, so it "
        f"is ambiguous which units are meant; pass layers= with a module's name (layers='{traced.label(last)}' ablates "
        "what that layer returns)."
    )


def unit_axis_behind(traced: TracedGraph, site: fx.Node, dimensions: int) -> int | None:
    """Return the unit axis of an output with `dimensions` dimensions, None if ambiguous.

    It is the last one behind a linear layer, and the first after the samples behind a convolution whose output has
    that many dimensions, samples included. (Tokens behind a convolution may have either.)
    """
    kinds = [_kind(traced, node) for node in _weighted(traced) if node in ancestors([site])]
    if dimensions == 2 or kinds[-1:] == [f"conv{dimensions - 2}d"]:
        return 1
    return -1 if kinds[-1:] == ["linear"] else None


def producing_layer(traced: TracedGraph, site: fx.Node, n_units: int) -> nn.Module | None:
    """Return the last convolution or linear module before `site` with `n_units` outputs."""
    before = ancestors([site])
    modules = [traced.module(node) for node in _weighted(traced) if node in before]
    return next((m for m in reversed(modules) if isinstance(m, Weighted) and len(m.weight) == n_units), None)
