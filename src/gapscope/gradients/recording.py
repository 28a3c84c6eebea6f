"""Recording of a forward pass on a tape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrize

from gapscope.gradients.backward import differentiable_kernels
from gapscope.gradients.chains import chain_of
from gapscope.gradients.contributions import Contribution
from gapscope.gradients.frozen_batch_stats import allow_frozen_stats
from gapscope.gradients.layer_rules import Call, Rule, rule_of
from gapscope.gradients.refused_layers import check_layers
from gapscope.gradients.rules import attention, can_be_unfolded, linear
from gapscope.gradients.second_derivatives import fast_second_derivatives
from gapscope.gradients.tape import Tape
from gapscope.gradients.tensor_hooks import on_tensor_hook
from gapscope.inspection.hooks import patch_forwards
from gapscope.inspection.network_checks import unwrapped
from gapscope.inspection.outputs import checked_outputs, eager_mode, raw_outputs
from gapscope.inspection.substitution import NOTHING_SUBSTITUTED, ParameterSubstitution


def _owned(module: nn.Module, substituted: ParameterSubstitution) -> dict[str, nn.Parameter]:
    """Return the trainable parameters of a module and of its parametrizations."""
    parameters = {
        name: p for name, p in module._parameters.items() if p is not None and p.requires_grad
    }
    if parametrize.is_parametrized(module):
        inner = module.parametrizations.named_parameters(prefix="parametrizations")  # type: ignore[union-attr]
        parameters |= {name: p for name, p in inner if p.requires_grad}
    return {name: substituted.original(p) for name, p in parameters.items()}


def _linear_of_rows(outside: tuple[int, int], call: Call, gradient: Tensor) -> list[Contribution]:
    """Apply the rule of a linear layer of whose weight some rows are not used, before and after the others."""
    return linear(call, F.pad(gradient, outside))


@contextmanager
def _unfolded_attention(module: nn.MultiheadAttention, name: str, tape: Tape) -> Iterator[None]:
    def project(
        x: Tensor, weight: Tensor, bias: Tensor | None, rows: slice | None = None
    ) -> Tensor:
        tensors = {"weight": weight, "bias": bias}
        originals = {key: tape.substituted.original(p) for key, p in tensors.items()}
        trainable = {
            key: p
            for key, p in originals.items()
            if isinstance(p, nn.Parameter) and p.requires_grad
        }
        rule: Rule = linear
        if rows is not None:
            rule = partial(_linear_of_rows, (rows.start, len(weight) - rows.stop))
            weight = weight[rows]
            bias = None if bias is None else bias[rows]
        projected = F.linear(x, weight, bias)
        tape.add(name, trainable, rule, module, (x,), {}, projected)
        return projected

    with patch_forwards({module: attention(module, project)}):
        yield


@contextmanager
def record_calls(
    network: nn.Module,
    inputs: Tensor,
    substituted: ParameterSubstitution = NOTHING_SUBSTITUTED,
    *,
    twice: bool = False,
) -> Iterator[Tape]:
    """Record the forward pass in the body, eagerly and without wrappers of the network.

    With `twice` its gradients will be differentiated.
    """
    network = unwrapped(network)
    modules = dict(network.named_modules())
    if substituted is not NOTHING_SUBSTITUTED:
        chain = []
    else:
        chain = chain_of(network, inputs)
    if chain:
        with eager_mode():
            yield Tape(network, modules, inputs, chain=chain)
        return
    check_layers(modules, twice=twice)
    tape = Tape(network, modules, inputs, substituted)
    with ExitStack() as stack:
        stack.enter_context(eager_mode())
        stack.enter_context(differentiable_kernels(modules.values()))
        stack.enter_context(on_tensor_hook(tape.note_tensor_hook))
        inside: set[nn.Module] = set()
        for name, module in modules.items():
            if module in inside:
                continue
            parameters = _owned(module, substituted)
            if parametrize.is_parametrized(module):
                inside |= set(module.parametrizations.modules())  # type: ignore[union-attr]
            if isinstance(module, nn.MultiheadAttention) and can_be_unfolded(module):
                stack.enter_context(_unfolded_attention(module, name, tape))
                inside.add(module.out_proj)
                parameters = {}
            # not `inspection.hooks.forward_hooks`: this hook receives keyword arguments, and runs before the hooks of
            # the user, whose changes of the output are not the layer's
            if parameters or module is network:
                note = partial(tape.add, name, parameters, rule_of(module, parameters))
                stack.callback(
                    module.register_forward_hook(note, prepend=True, with_kwargs=True).remove
                )
        if twice:
            stack.enter_context(fast_second_derivatives(modules))
        # registered last, so that these hooks run first and the tape records what the layers return
        stack.enter_context(allow_frozen_stats(modules))
        yield tape


def record_forward(
    network: nn.Module,
    inputs: Tensor,
    substituted: ParameterSubstitution = NOTHING_SUBSTITUTED,
    outputs_of: Callable[[Any], Tensor] = raw_outputs,
    *,
    twice: bool = False,
) -> tuple[Tape, Float[Tensor, "n k"]]:
    """Run the network on a batch, and return the tape with the outputs (`twice` is that of `record_calls`)."""
    with record_calls(network, inputs, substituted, twice=twice) as tape:
        tape.outputs_of = outputs_of
        outputs = outputs_of(network(inputs))
    return tape, checked_outputs(outputs, tape.n)
