"""Tape of the calls of a forward pass, and the per-sample Jacobian from them."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.utils._pytree import tree_flatten

from gapscope.base.errors import GapscopeError, SlowGradients
from gapscope.base.user_warnings import warn_user
from gapscope.gradients.backward import gradients_at, per_sample_gradients
from gapscope.gradients.broadcasts import Broadcast, Graph, find_joins, merge_contributions
from gapscope.gradients.chains import chain_contributions
from gapscope.gradients.contributions import Contribution
from gapscope.gradients.layer_rules import (
    Call,
    NotSeparable,
    Output,
    Rule,
    accepts_leading_dims,
    apply_rule,
)
from gapscope.gradients.per_sample import dense_contribution, per_sample_jacobian
from gapscope.gradients.refused_layers import Modules
from gapscope.inspection.network_checks import check_trainable
from gapscope.inspection.network_errors import explained_errors
from gapscope.inspection.outputs import raw_outputs
from gapscope.inspection.substitution import NOTHING_SUBSTITUTED, ParameterSubstitution

# Networks for which the warning about slow gradients was issued.
_WARNED: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def _leaves(tree: Any) -> list[Any]:
    return [tree] if isinstance(tree, Tensor) else tree_flatten(tree)[0]


def _trainable(modules: Modules, substituted: ParameterSubstitution) -> dict[str, nn.Parameter]:
    """Return trainable parameters by their first name, without walking the network again."""
    names: dict[nn.Parameter, str] = {}
    for prefix, module in modules.items():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.requires_grad:
                names.setdefault(
                    substituted.original(parameter), f"{prefix}.{name}" if prefix else name
                )
    return {name: parameter for parameter, name in names.items()}


def join_names(names: Sequence[str]) -> str:
    """Return up to four names for a message."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _warn_slow_path(tape: Tape, parameters: Mapping[str, nn.Parameter]) -> None:
    network = getattr(tape.network, "adapted_from", tape.network)
    if network in _WARNED:
        return
    _WARNED.add(network)
    names = join_names(list(parameters))
    warn_user(
        f"Gradients of individual samples by {names} are computed by one backward pass per sample, "
        "which is correct but slow: the network uses these weights in a way that no faster method supports. Use each "
        "weight by calling the layer that owns it, or freeze it with requires_grad_(False) to exclude it.",
        SlowGradients,
    )


def _rows_of_call(call: Call, rows: Tensor) -> list[Contribution]:
    batch_call = call.expand_to_batch()
    return apply_rule(batch_call, rows.reshape(len(rows), *batch_call.outputs[0].shape))


class Tape:
    """The calls of one recorded forward pass.

    Parameters that are used outside calls of their own module, or in calls whose outputs do not have one row per
    sample, are in `whole_network` (by identity): their Jacobian comes from the whole network, vectorized over samples.
    Those for which that fails as well are in `per_sample`: their Jacobian comes from its definition, one backward pass
    of the whole batch per sample.

    The calls of a chain of linear layers are not recorded: autograd's graph holds them (`gapscope.gradients.chains`).
    """

    def __init__(
        self,
        network: nn.Module,
        modules: Modules,
        inputs: Tensor,
        substituted: ParameterSubstitution = NOTHING_SUBSTITUTED,
        chain: Sequence[nn.Linear] = (),
    ) -> None:
        self.network = network
        self.modules = modules
        self.chain = chain
        self.inputs = inputs.detach()
        self.substituted = substituted
        # the call of the network itself, with all trainable parameters; None until it has returned
        self.network_call: Call | None = None
        self.outputs_of: Callable[[Any], Tensor] = raw_outputs
        self.n = len(inputs)
        device = inputs.device.type
        self.autocast = partial(
            torch.autocast,
            device,
            torch.get_autocast_dtype(device),
            enabled=torch.is_autocast_enabled(device),
        )
        self.calls: list[Call] = []
        # whether code in the pass has registered hooks that may change derivatives
        self.has_tensor_hooks = False
        self.whole_network: frozenset[int] = frozenset()
        self.per_sample: frozenset[int] = frozenset()
        # parameters of layers whose input is the same for all samples, although a size of it equals their number
        self.shared: frozenset[int] = frozenset()
        self._graph: Graph | None = None
        self._joined: dict[Hashable, list[Broadcast]] = {}  # by routing
        self._pattern: Hashable = None
        self.parameters = _trainable(modules, substituted)
        check_trainable(self.parameters)

    def note_tensor_hook(self) -> None:
        """Note that code in the pass has registered a hook of a tensor."""
        self.has_tensor_hooks = True

    def add(
        self,
        name: str,
        parameters: Mapping[str, nn.Parameter],
        rule: Rule | None,
        module: nn.Module,
        arguments: tuple[Any, ...],
        keywords: Mapping[str, Any],
        result: Any,
    ) -> None:
        """Record one call (the last four arguments are those of a forward hook)."""
        outputs = tuple(
            Output(get_gradient_edge(leaf), leaf.shape, index)
            for index, leaf in enumerate(_leaves(raw_outputs(result)))
            if isinstance(leaf, Tensor) and leaf.requires_grad
        )
        if not outputs:
            return
        leaves = [leaf for tree in (*arguments, *keywords.values()) for leaf in _leaves(tree)]
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor) and not leaf.is_inference()]
        call = Call(
            name=name,
            module=module,
            arguments=arguments,
            keywords=keywords,
            parameters=parameters,
            outputs=outputs,
            shapes=tuple(leaf.shape if isinstance(leaf, Tensor) else None for leaf in leaves),
            versions=tuple((leaf, leaf._version) for leaf in tensors),
            rule=rule,
            n=self.n,
            features_last=accepts_leading_dims(module),
            autocast=self.autocast,
            substituted=self.substituted,
        )
        if module is self.network:
            self.network_call = replace(call, parameters=self.parameters, rule=None)
        if parameters:
            self.calls.append(call)

    @property
    def routing(self) -> tuple[frozenset[int], frozenset[int], frozenset[int]]:
        """The parameters `whole_network`, `per_sample` and `shared`."""
        return self.whole_network, self.per_sample, self.shared

    def route(
        self, whole_network: frozenset[int], per_sample: frozenset[int], shared: frozenset[int]
    ) -> None:
        """Set which parameters (by identity) bypass the usual rules of their layers."""
        self.whole_network = whole_network
        self.per_sample = per_sample
        self.shared = shared
        self.calls = [replace(call, shared=bool(call.owned & shared)) for call in self.calls]

    def shareable(self, outputs: Tensor, parameters: Set[int]) -> frozenset[int]:
        """Return which of these parameters are of layers that could be the same for all samples."""
        before = self.routing
        ambiguous = frozenset(
            key
            for call in self.calls
            if call.rule is not None and call.sample_dim is not None
            for key in call.owned & parameters
        )
        if not ambiguous:
            return frozenset()
        self.route(self.whole_network, self.per_sample, self.shared | ambiguous)
        found = {key for broadcast in self._broadcasts(outputs) for key in broadcast.parameters}
        self.route(*before)
        return ambiguous & found

    def _graph_of(self, outputs: Tensor) -> Graph:
        assert outputs.grad_fn is not None
        if self._graph is None or self._graph.root is not outputs.grad_fn:
            self._graph = Graph(outputs.grad_fn)
            self._joined = {}
        return self._graph

    def pattern(self, outputs: Tensor) -> Hashable:
        """Return how the pass uses its parameters, as far as the routing depends on it; called before `route`.

        Passes of one pattern make the same calls, read the same dimensions as those of the samples, and use every
        parameter as often. Beyond twice as often as it is called the number is open: code may repeat a use at will.
        """
        if self._pattern is None:
            graph = self._graph_of(outputs)
            calls = Counter(key for call in self.calls for key in call.owned)
            uses = [
                min(graph.uses(self.substituted[p]), 2 * calls[id(p)] + 1)
                for p in self.parameters.values()
            ]
            joins = [
                (broadcast.parameters, tuple(join.dim for join in broadcast.joins))
                for broadcast in self._broadcasts(outputs)
            ]
            patterns = [call.pattern for call in self.calls]
            if self.network_call is not None:
                patterns.append(self.network_call.pattern)
            self._pattern = tuple(patterns), tuple(uses), tuple(joins)
        return self._pattern

    def _broadcasts(self, outputs: Tensor) -> list[Broadcast]:
        """Return tensors without a batch dimension and their uses."""
        graph = self._graph_of(outputs)
        if self.routing not in self._joined:
            self._joined[self.routing] = self._find_broadcasts(graph)
        return self._joined[self.routing]

    def _find_broadcasts(self, graph: Graph) -> list[Broadcast]:
        rerouted = self.whole_network | self.per_sample
        known = {
            id(p) for call in self.calls if call.rule is not None for p in call.parameters.values()
        }
        broadcasts = [
            Broadcast(
                get_gradient_edge(self.substituted[p]),
                lambda rows, p=p: [dense_contribution(p, rows)],
                frozenset({id(p)}),
            )
            for p in self.parameters.values()
            if id(p) not in known | rerouted and not p.is_complex()
        ]
        for call in self.calls:
            if call.lacks_batch_dim and not call.owned & rerouted:
                broadcasts.append(
                    Broadcast(call.outputs[0].edge, partial(_rows_of_call, call), call.owned)
                )
        return find_joins(graph, broadcasts, self.n) if broadcasts else []

    def _routed(self, broadcasts: Sequence[Broadcast]) -> tuple[list[Call], set[int]]:
        """Return the calls with correct rows of parameters, and the parameters without one."""
        broadcast_keys = {key for broadcast in broadcasts for key in broadcast.parameters}
        whole_network = set(self.whole_network)
        per_sample = set(self.per_sample)
        for call in self.calls:
            if call.lacks_batch_dim and not call.owned & broadcast_keys:
                whole_network |= call.owned
        if not whole_network | per_sample | broadcast_keys:
            return self.calls, per_sample
        if self.network_call is None:
            per_sample |= whole_network
        routed = []
        for call in self.calls:
            rerouted = (
                whole_network
                | per_sample
                | (broadcast_keys if call.rule is None or call.lacks_batch_dim else set())
            )
            regular = {name: p for name, p in call.parameters.items() if id(p) not in rerouted}
            if regular:
                routed.append(replace(call, parameters=regular))
        of_network = {
            name: p for name, p in self.parameters.items() if id(p) in whole_network - per_sample
        }
        if of_network and self.network_call is not None:
            routed.append(replace(self.network_call, parameters=of_network))
        return routed, per_sample

    def contributions(
        self,
        outputs: Float[Tensor, "n k"],
        cotangents: Float[Tensor, "c n k"],
        *,
        create_graph: bool = False,
    ) -> dict[tuple[int, ...], Contribution]:
        """Return the Jacobian of `(cotangents * outputs).sum(-1)` by parameter."""
        if self.chain:
            by_identity = {id(parameter): parameter for parameter in self.parameters.values()}
            try:
                parts = chain_contributions(
                    outputs, cotangents, by_identity, len(self.chain), create_graph=create_graph
                )
            except LookupError:  # a function of torch was replaced: the definition remains
                self.chain = ()
                self.per_sample = frozenset(by_identity)
            else:
                with torch.set_grad_enabled(create_graph):
                    return merge_contributions(parts)
        parts, uncovered = self.contributions_per_call(
            outputs, cotangents, create_graph=create_graph
        )
        if uncovered:
            _warn_slow_path(self, uncovered)
            sources = [self.substituted[parameter] for parameter in uncovered.values()]
            with explained_errors():
                rows = per_sample_gradients(outputs, sources, cotangents, create_graph=create_graph)
            parts += [
                dense_contribution(p, values)
                for p, values in zip(uncovered.values(), rows, strict=True)
            ]
        with (
            torch.set_grad_enabled(create_graph),
            torch.autocast(outputs.device.type, enabled=False),
        ):
            return merge_contributions(parts)

    def contributions_per_call(
        self,
        outputs: Float[Tensor, "n k"],
        cotangents: Float[Tensor, "c n k"],
        *,
        create_graph: bool,
    ) -> tuple[list[Contribution], dict[str, nn.Parameter]]:
        """Return the contributions of each call, and the parameters (by name) that no call covers."""
        broadcasts = self._broadcasts(outputs)
        calls, per_sample = self._routed(broadcasts)
        for call in calls:
            call.check_unchanged()
        edges = [out.edge for call in calls for out in call.outputs]
        edges += [join.edge for broadcast in broadcasts for join in broadcast.joins]
        cotangents = cotangents.to(outputs.dtype)
        with explained_errors():
            if edges:
                derivatives = gradients_at(
                    [outputs], edges, [cotangents], create_graph=create_graph
                )
            else:
                derivatives = []
        gradients = iter(derivatives)
        parts: list[Contribution] = []
        with (
            torch.set_grad_enabled(create_graph),
            torch.autocast(outputs.device.type, enabled=False),
        ):
            for call in calls:
                by_output = [next(gradients) for _ in call.outputs]
                if all(gradient is None for gradient in by_output):
                    continue
                filled = [
                    outputs.new_zeros(len(cotangents), *out.shape) if gradient is None else gradient
                    for gradient, out in zip(by_output, call.outputs, strict=True)
                ]
                try:
                    parts += (
                        per_sample_jacobian(call, filled)
                        if call.rule is None
                        else apply_rule(call, filled[0])
                    )
                except (GapscopeError, torch.OutOfMemoryError):
                    raise
                except (
                    NotSeparable,
                    RuntimeError,
                    ValueError,
                    IndexError,
                    TypeError,
                    AssertionError,
                ):
                    # not one row per sample: sizes coincided by chance, or a module cannot run on a single sample
                    per_sample |= {id(parameter) for parameter in call.parameters.values()}
            for broadcast in broadcasts:
                parts += broadcast.contributions(
                    [next(gradients) for _ in broadcast.joins], create_graph=create_graph
                )
        # a part may contain further parameters (weight and bias), which then need the fallback in all of their parts
        while dropped := [part for part in parts if per_sample & set(part.key)]:
            per_sample |= {key for part in dropped for key in part.key}
            parts = [part for part in parts if not per_sample & set(part.key)]
        return parts, {name: p for name, p in self.parameters.items() if id(p) in per_sample}
