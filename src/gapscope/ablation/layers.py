"""Traced graph of a network, its subgraphs, and the default layer for ablation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from torch import Tensor, fx, nn

from gapscope.base.errors import NotMeasurable
from gapscope.inspection.execution import exclusive
from gapscope.inspection.hooks import (
    ACTIVATIONS,
    Weighted,
    kind,
    named_modules,
    record_module_calls,
)

Nodes = Iterable[fx.Node]


class _Root(nn.Module):
    """Wrapper that calls the network with its inputs only (other arguments are defaults)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Any) -> Any:
        return self.network(x)


class _Tracer(fx.Tracer):
    """Tracer into modules with children, which records the returned node of each call."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.thread = threading.get_ident()
        self.returned: dict[nn.Module, list[fx.Node]] = {}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if m is self.network:
            return False
        return next(m.children(), None) is None or super().is_leaf_module(m, module_qualified_name)

    def call_module(
        self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if (
            threading.get_ident() != self.thread
        ):  # fx patches all modules of the process: another thread's own call
            return forward(*args, **kwargs)
        result = super().call_module(m, forward, args, kwargs)
        if isinstance(result, fx.Proxy):
            self.returned.setdefault(m, []).append(result.node)
        return result

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, fx.Proxy]) -> Any:
        if threading.get_ident() != self.thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)


@dataclass(frozen=True)
class TracedGraph:
    """Operations of one forward pass.

    The names of `graph` refer to `root`. `returned` has the result of each call of a module, `names` the name of each
    module in the network.
    """

    root: nn.Module
    graph: fx.Graph
    output: fx.Node
    returned: dict[nn.Module, list[fx.Node]]
    names: dict[nn.Module, str]

    @property
    def input(self) -> fx.Node:
        """Operation that represents the network's input."""
        return next(node for node in self.graph.nodes if node.op == "placeholder")

    def module(self, node: fx.Node) -> nn.Module | None:
        """Return the module that a node calls, None for a function."""
        if node.op == "call_module":
            return self.root.get_submodule(str(node.target))
        return None

    def function_name(self, node: fx.Node) -> str:
        """Return the name of the class or function that a node calls."""
        module = self.module(node)
        if module is not None:
            return type(module).__name__
        if isinstance(node.target, str):
            return node.target
        return getattr(node.target, "__name__", "")

    def label(self, node: fx.Node) -> str:
        """Return the innermost module that returns this node and is called once, else the node."""
        names = [
            self.names[m]
            for m, nodes in self.returned.items()
            if nodes == [node] and self.names.get(m)
        ]
        return max(
            names, key=lambda name: name.count("."), default=node.name.removeprefix("network_")
        )

    def find(self, layer: str) -> fx.Node | None:
        """Return the one node that the module `layer` returns, or with this label (else None)."""
        module = {name: module for module, name in self.names.items()}.get(layer)
        if module is not None:
            nodes = self.returned.get(module, [])
            if len(nodes) == 1:
                return nodes[0]
            return None
        return next((node for node in self.graph.nodes if self.label(node) == layer), None)


@contextmanager
def _restored_after_tracing(network: nn.Module) -> Iterator[None]:
    """Undo what the body changes: attributes of the modules, and fx's patches of all modules of the process."""
    attributes = [(module, dict(vars(module))) for module in network.modules()]
    with exclusive():
        call = nn.Module.__call__
        get_attribute = nn.Module.__getattr__
        try:
            yield
        finally:
            nn.Module.__call__ = call
            nn.Module.__getattr__ = get_attribute
            for module, content in attributes:
                vars(module).clear()
                vars(module).update(content)


def trace(network: nn.Module) -> TracedGraph | None:
    """Return the network's operations, None if its forward cannot be traced symbolically.

    Attributes that the forward pass changes during tracing are restored.
    """
    root = _Root(network)
    tracer = _Tracer(network)
    try:
        with _restored_after_tracing(network):
            graph = tracer.trace(root)
    except Exception:  # user code: with symbols instead of tensors it may raise anything
        return None
    output = next(node for node in graph.nodes if node.op == "output").args[0]
    if not isinstance(output, fx.Node):
        return None
    names = {module: name for name, module in named_modules(network).items()}
    return TracedGraph(root, graph, output, tracer.returned, names)


def _reached(nodes: Nodes, step: Callable[[fx.Node], Nodes], stop: Nodes) -> set[fx.Node]:
    reached = set()
    stopped = set(stop)
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in reached:
            reached.add(node)
            waiting += [] if node in stopped else list(step(node))
    return reached


def descendants(nodes: Nodes, *, stop: Nodes = ()) -> set[fx.Node]:
    """Return the nodes and everything computed from them, not beyond nodes of `stop`."""
    return _reached(nodes, lambda node: node.users, stop)


def ancestors(nodes: Nodes, *, stop: Nodes = ()) -> set[fx.Node]:
    """Return the nodes and everything they are computed from, not beyond nodes of `stop`."""
    return _reached(nodes, lambda node: node.all_input_nodes, stop)


def crossing(traced: TracedGraph, site: fx.Node) -> list[fx.Node]:
    """Return the nodes that bypass `site`: computed from the input and used behind `site`."""
    behind = (descendants([site]) & ancestors([traced.output])) - {site}
    from_input = descendants([traced.input])
    return [
        node
        for node in traced.graph.nodes
        if node in from_input
        and node not in behind
        and node is not site
        and any(user in behind for user in node.users)
    ]


Subgraph = Callable[..., Any]
"""Subset of a network's operations as a function of its inputs, which returns a tuple."""


def extract_subgraph(
    traced: TracedGraph, inputs: Sequence[fx.Node], outputs: Sequence[fx.Node]
) -> tuple[Subgraph, list[bool]]:
    """Return the operations from `inputs` to `outputs`, and which inputs they use.

    The subgraph takes a value for each input that it uses, and returns those of `outputs`.
    """
    needed = ancestors(outputs, stop=inputs)
    graph = fx.Graph()
    copies = {node: graph.placeholder(node.name) for node in inputs if node in needed}
    for node in traced.graph.nodes:
        if node in needed and node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in outputs))
    # interpreted: torch caches the generated code of a GraphModule forever, some kilobytes per subgraph
    interpreter = fx.Interpreter(traced.root, graph=graph)
    interpreter.extra_traceback = False
    return interpreter.run, [node in needed for node in inputs]


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
    return [
        node
        for node in traced.graph.nodes
        if node in used and _kind(traced, node) in _CONVOLUTIONS | {"linear"}
    ]


def default_module(network: nn.Module, x: Tensor) -> str:
    """Return the default ablation module of an untraceable network, by call order."""
    # functional activations are not visible here, and a sigmoid might be a gate
    calls = record_module_calls(network, x[:1])
    *hidden, _ = [i for i, call in enumerate(calls) if isinstance(call.module, Weighted)] or [0]
    last = next(
        (i for i in reversed(hidden) if not isinstance(calls[i].module, nn.Linear)),
        max(hidden, default=-1),
    )
    behind = takewhile(lambda call: not isinstance(call.module, Weighted), calls[last + 1 :])
    for call in behind if hidden else ():
        if kind(type(call.module).__name__).removesuffix("activation") in ACTIVATIONS - _GATES:
            return call.name
    raise NotMeasurable(
        "The layer to ablate is ambiguous: the network's forward cannot be traced, and no activation module is called "
        "after its last hidden layer. Pass layers= with the name of the module whose units are to be ablated."
    )


def default_site(traced: TracedGraph) -> fx.Node:
    """Return the activation of the last convolution, or else of the last hidden layer."""
    # The last layer with weights is the network's head and no hidden layer. The activation is the first one after the
    # hidden layer (past normalization, pooling, dropout and residual sums) and before the next layer with weights: in a
    # residual network the activation after the last sum. A sigmoid that only multiplies other values is a gate.
    *hidden, _ = _weighted(traced) or [traced.input]
    if not hidden:
        raise NotMeasurable(
            "Unit ablation needs a hidden layer before the network's last layer; there is none. "
            "Pass layers= with the name of the module whose units are to be ablated."
        )
    convolutions = [node for node in hidden if _kind(traced, node) in _CONVOLUTIONS]
    last = (convolutions or hidden)[-1]
    behind = descendants([last], stop=set(_weighted(traced)) - {last})
    for node in traced.graph.nodes:
        if node in behind and _is_activation(traced, node):
            return node
    raise NotMeasurable(
        f"The units to ablate are ambiguous: no activation follows the last hidden layer '{traced.label(last)}' before "
        f"the next layer with weights. Pass layers= with a module's name (layers='{traced.label(last)}' ablates its "
        "outputs)."
    )


def unit_axis_behind(traced: TracedGraph, site: fx.Node, dimensions: int) -> int | None:
    """Return the unit axis of an output with `dimensions` dimensions, None if ambiguous.

    It is the last axis after a linear layer, and axis 1 after a convolution whose output has that many dimensions,
    including that of the samples. (Tokens after a convolution may have either.)
    """
    kinds = [_kind(traced, node) for node in _weighted(traced) if node in ancestors([site])]
    if dimensions == 2 or kinds[-1:] == [f"conv{dimensions - 2}d"]:
        return 1
    if kinds[-1:] == ["linear"]:
        return -1
    return None
