"""Record one forward pass, and turn it into what each parameter adds to the per-sample Jacobian."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrize
from torch.utils._pytree import tree_flatten

from gapscope.errors import NotMeasurable, ReplaceLayer
from gapscope.gradients import rules as rules
from gapscope.gradients.contributions import Contribution, combined
from gapscope.gradients.double_backward import differentiable_kernels
from gapscope.gradients.layer_rules import Call, Output, Rule, apply_rule, rule_of, treats_leading_dimensions_alike
from gapscope.gradients.per_sample import per_sample_jacobian
from gapscope.gradients.rules.attention import attention, can_be_unfolded
from gapscope.gradients.rules.linear import linear
from gapscope.inspection import checked_outputs


def check_no_batch_statistics(network: nn.Module) -> None:
    """Raise ReplaceLayer where BatchNorm would mix the samples of a batch, so that single samples have no gradient."""
    for name, module in network.named_modules():
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            raise ReplaceLayer(
                f"BatchNorm must not mix the samples of a batch where gradients of single samples are needed; "
                f"'{name}' uses the statistics of the batch. Put it into evaluation mode with running statistics "
                "(module.eval()), or use GroupNorm."
            )


def _owned(module: nn.Module) -> dict[str, nn.Parameter]:
    """Trainable parameters that a call of this very module uses: its own, and those of its parametrizations."""
    own = {name: p for name, p in module.named_parameters(recurse=False) if p.requires_grad}
    if parametrize.is_parametrized(module):
        inner = module.parametrizations.named_parameters(prefix="parametrizations")  # type: ignore[union-attr]
        own |= {name: p for name, p in inner if p.requires_grad}
    return own


def _outputs(result: Any) -> tuple[Output, ...]:
    leaves = enumerate(tree_flatten(result)[0])
    return tuple(
        Output(get_gradient_edge(leaf), leaf.shape, index)
        for index, leaf in leaves
        if isinstance(leaf, Tensor) and leaf.requires_grad
    )


def _versions(arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> tuple[tuple[Tensor, int], ...]:
    leaves = tree_flatten((arguments, dict(keywords)))[0]
    return tuple((leaf, leaf._version) for leaf in leaves if isinstance(leaf, Tensor) and not leaf.is_inference())


class Tape:
    """The calls of one recorded forward pass.

    Attributes:
        network: The recorded network, without a wrapper for distributed training.
        n: Samples in the batch.
        calls: Calls of modules that own trainable parameters.
        whole: The call of the network itself, with all trainable parameters; there once it has returned.
        irregular: Parameters (by identity) that are used outside calls of their own module, or in calls whose
            outputs do not hold one row a sample; their Jacobian is taken from the whole network.
    """

    whole: Call

    def __init__(self, network: nn.Module, inputs: Tensor) -> None:
        self.network = network
        self.n = len(inputs)
        device = inputs.device.type
        self.autocast = partial(
            torch.autocast, device, torch.get_autocast_dtype(device), enabled=torch.is_autocast_enabled(device)
        )
        self.calls: list[Call] = []
        self.irregular: frozenset[int] = frozenset()
        self.parameters = {name: p for name, p in network.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise NotMeasurable(
                "A network must have trainable parameters; all of its parameters are frozen or it has none. "
                "Use parameter.requires_grad_(True)."
            )

    def add(
        self,
        name: str,
        module: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        rule: Rule | None,
        arguments: tuple[Any, ...],
        keywords: Mapping[str, Any],
        result: Any,
    ) -> None:
        """Note one call."""
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
    return [None if column[0] is None else torch.stack(column) for column in zip(*rows, strict=True)]


@contextmanager
def _unfolded_attention(module: nn.MultiheadAttention, name: str, tape: Tape) -> Iterator[None]:
    def project(x: Tensor, weight: Tensor, bias: Tensor | None, rows: slice | None = None) -> Tensor:
        given = {"weight": weight, "bias": bias}
        trainable = {key: p for key, p in given.items() if isinstance(p, nn.Parameter) and p.requires_grad}
        if rows is None:
            projected = F.linear(x, weight, bias)
            tape.add(name, module, trainable, linear, (x,), {}, projected)
        else:
            projected = F.linear(x, weight[rows], None if bias is None else bias[rows])
            outside = (rows.start, len(weight) - rows.stop)
            rule: Rule = lambda call, gradient: linear(call, F.pad(gradient, outside))  # noqa: E731
            tape.add(name, module, trainable, rule, (x,), {}, projected)
        return projected

    module.forward = attention(module, project)  # type: ignore[method-assign]
    try:
        yield
    finally:
        del module.forward


def _note(
    tape: Tape,
    name: str,
    parameters: Mapping[str, nn.Parameter],
    rule: Rule | None,
    module: nn.Module,
    arguments: tuple[Any, ...],
    keywords: Mapping[str, Any],
    result: Any,
) -> None:
    tape.add(name, module, parameters, rule, arguments, keywords, result)


@contextmanager
def recording(network: nn.Module, inputs: Tensor) -> Iterator[Tape]:
    """Record the forward pass that runs in the body.

    Args:
        network: The network, possibly wrapped by DistributedDataParallel.
        inputs: The batch, samples first.

    Yields:
        The tape.
    """
    if isinstance(network, DistributedDataParallel):
        network = network.module
    check_no_batch_statistics(network)
    tape = Tape(network, inputs)
    with ExitStack() as stack:
        stack.enter_context(differentiable_kernels(network))
        inside: set[nn.Module] = set()
        for name, module in network.named_modules():
            if module in inside:
                continue
            parameters = _owned(module)
            if parametrize.is_parametrized(module):
                inside |= set(module.parametrizations.modules())  # type: ignore[union-attr]
            if isinstance(module, nn.MultiheadAttention) and can_be_unfolded(module):
                stack.enter_context(_unfolded_attention(module, name, tape))
                inside.add(module.out_proj)
                parameters = {}
            if parameters or module is network:
                handle = module.register_forward_hook(
                    partial(_note, tape, name, parameters, rule_of(module, parameters)), prepend=True, with_kwargs=True
                )
                stack.callback(handle.remove)
        yield tape


def recorded(network: nn.Module, inputs: Tensor) -> tuple[Tape, Float[Tensor, "n k"]]:
    """Run the network on a batch and return the tape with the outputs."""
    with recording(network, inputs) as tape:
        outputs = network(inputs)
    return tape, checked_outputs(outputs, tape.n)
