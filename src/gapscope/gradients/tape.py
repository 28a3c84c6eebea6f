"""The calls of one recorded forward pass, and what each parameter adds to the per-sample Jacobian through them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.utils._pytree import tree_flatten

from gapscope.base.errors import NotMeasurable
from gapscope.gradients.contributions import Contribution, combined
from gapscope.gradients.layer_rules import Call, Output, Rule, apply_rule, treats_leading_dimensions_alike
from gapscope.gradients.per_sample import per_sample_jacobian


def _leaves(tree: Any) -> list[Any]:
    return [tree] if isinstance(tree, Tensor) else tree_flatten(tree)[0]


def _outputs(result: Any) -> tuple[Output, ...]:
    leaves = enumerate(_leaves(result))
    return tuple(
        Output(get_gradient_edge(leaf), leaf.shape, index)
        for index, leaf in leaves
        if isinstance(leaf, Tensor) and leaf.requires_grad
    )


def _versions(arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> tuple[tuple[Tensor, int], ...]:
    leaves = [leaf for tree in (*arguments, *keywords.values()) for leaf in _leaves(tree)]
    return tuple((leaf, leaf._version) for leaf in leaves if isinstance(leaf, Tensor) and not leaf.is_inference())


def output_gradients(
    outputs: Tensor, edges: Sequence[Any], cotangents: Float[Tensor, "c n k"], *, create_graph: bool
) -> list[Tensor | None]:
    """Return the derivatives [C, ...] of `(cotangents * outputs).sum()` at every edge; None where there is none.

    Args:
        outputs: The network's outputs.
        edges: Places in their graph.
        cotangents: C weightings of the outputs.
        create_graph: Whether the result is to be differentiated.

    Returns:
        One tensor an edge.
    """
    cotangents = cotangents.to(outputs.dtype)
    settings: dict[str, Any] = {"retain_graph": True, "create_graph": create_graph, "allow_unused": True}
    if not create_graph and len(cotangents) > 1:
        try:
            return list(torch.autograd.grad(outputs, edges, cotangents, is_grads_batched=True, **settings))
        except RuntimeError:  # an operation whose backward vmap cannot batch: one cotangent after the other
            pass
    rows = [torch.autograd.grad(outputs, edges, cotangent, **settings) for cotangent in cotangents]
    if len(rows) == 1:
        return [None if gradient is None else gradient[None] for gradient in rows[0]]
    return [None if column[0] is None else torch.stack(column) for column in zip(*rows, strict=True)]


def _trainable(modules: Mapping[str, nn.Module]) -> dict[str, nn.Parameter]:
    """Trainable parameters by their first name, as `named_parameters`, without walking the network again."""
    found: dict[nn.Parameter, str] = {}
    for prefix, module in modules.items():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.requires_grad:
                found.setdefault(parameter, f"{prefix}.{name}" if prefix else name)
    return {name: parameter for parameter, name in found.items()}


class Tape:
    """The calls of one recorded forward pass.

    Attributes:
        network: The recorded network, without a wrapper for distributed training.
        modules: The network and all modules in it, by name.
        n: Samples in the batch.
        parameters: Trainable parameters by name.
        calls: Calls of modules that own trainable parameters.
        whole: The call of the network itself, with all trainable parameters; there once it has returned.
        irregular: Parameters (by identity) that are used outside calls of their own module, or in calls whose
            outputs do not hold one row a sample; their Jacobian is taken from the whole network.
    """

    whole: Call

    def __init__(self, network: nn.Module, modules: Mapping[str, nn.Module], inputs: Tensor) -> None:
        self.network, self.modules = network, modules
        self.n = len(inputs)
        device = inputs.device.type
        self.autocast = partial(
            torch.autocast, device, torch.get_autocast_dtype(device), enabled=torch.is_autocast_enabled(device)
        )
        self.calls: list[Call] = []
        self.irregular: frozenset[int] = frozenset()
        self.parameters = _trainable(modules)
        if not self.parameters:
            raise NotMeasurable(
                "A network must have trainable parameters; all of its parameters are frozen or it has none. "
                "Use parameter.requires_grad_(True)."
            )

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
        """Note one call; the last four are what a forward hook is given."""
        outputs = _outputs(result)
        if not outputs:
            return
        call = Call(
            name=name,
            module=module,
            arguments=arguments,
            keywords=keywords,
            parameters=parameters,
            outputs=outputs,
            versions=_versions(arguments, keywords),
            rule=rule,
            n=self.n,
            features_last=treats_leading_dimensions_alike(module),
            autocast=self.autocast,
        )
        if module is self.network:
            self.whole = replace(call, parameters=self.parameters, rule=None)
        if parameters:
            self.calls.append(call)

    def _routed(self) -> list[Call]:
        """Calls with the parameters for which each is right; the irregular ones go to the whole network."""
        irregular = set(self.irregular)
        for call in self.calls:
            if call.rule is not None and call.sample_dim is None:
                irregular |= {id(p) for p in call.parameters.values()}
        if not irregular:
            return self.calls
        routed = []
        for call in self.calls:
            regular = {name: p for name, p in call.parameters.items() if id(p) not in irregular}
            if regular:
                routed.append(replace(call, parameters=regular))
        left = {name: p for name, p in self.parameters.items() if id(p) in irregular}
        if left:
            routed.append(replace(self.whole, parameters=left))
        return routed

    def contributions(
        self, outputs: Float[Tensor, "n k"], cotangents: Float[Tensor, "c n k"], *, create_graph: bool = False
    ) -> dict[tuple[int, ...], Contribution]:
        """Return what each parameter adds to the Jacobian of `(cotangents * outputs).sum(-1)`, [C, N, P].

        Args:
            outputs: What the recorded pass returned.
            cotangents: Weights of the outputs.
            create_graph: Whether the result is to be differentiated.

        Returns:
            One contribution a parameter (or a weight with its bias).
        """
        calls = self._routed()
        for call in calls:
            call.check_unchanged()
        edges = [out.edge for call in calls for out in call.outputs]
        gradients = iter(output_gradients(outputs, edges, cotangents, create_graph=create_graph))
        parts: list[Contribution] = []
        with torch.set_grad_enabled(create_graph), torch.autocast(outputs.device.type, enabled=False):
            for call in calls:
                given = [next(gradients) for _ in call.outputs]
                if all(gradient is None for gradient in given):
                    continue
                filled = [
                    outputs.new_zeros(len(cotangents), *out.shape) if gradient is None else gradient
                    for gradient, out in zip(given, call.outputs, strict=True)
                ]
                parts += per_sample_jacobian(call, filled) if call.rule is None else apply_rule(call, filled[0])
            return combined(parts)
