"""The layer through which the samples of a batch act on each other, found by its outputs."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.utils._pytree import tree_leaves

from gapscope.base.errors import NeverSupported
from gapscope.inspection.hooks import patch_forwards
from gapscope.inspection.known_layers import known_layers
from gapscope.inspection.norms import uses_batch_statistics
from gapscope.inspection.outputs import eager_mode
from gapscope.inspection.restoring import preserve_state

# difference of a layer's outputs for the same samples above which others act on them, in roundings of the largest:
# passes of one shape round alike, up to the order of atomic additions
_TOLERANCE = 10

# the layer, and the rows of some samples in its inputs and outputs
_Passed = tuple[nn.Module, list[Tensor], list[Tensor]]


def _rows(tree: Any, n: int, kept: int) -> list[Tensor]:
    """Return copies of the rows of the first `kept` of n samples in all tensors of real or complex numbers."""
    rows = []
    for leaf in tree_leaves(tree):
        if not isinstance(leaf, Tensor) or not leaf.ndim:
            continue
        if not (leaf.is_floating_point() or leaf.is_complex()):
            continue
        # tensors of a vmap in the network's forward must not leave it
        if is_functorch_wrapped_tensor(leaf):
            continue
        if len(leaf) % n == 0:
            rows.append(leaf[: len(leaf) // n * kept].clone())
        elif leaf.ndim > 1 and leaf.shape[1] == n:
            rows.append(leaf[:, :kept].clone())
    return rows


def _differ(first: list[Tensor], second: list[Tensor]) -> bool:
    for one, other in zip(first, second, strict=False):
        if one.shape != other.shape:
            return True
        if one.numel():
            largest = _TOLERANCE * torch.finfo(one.dtype).eps * float(other.abs().max())
            if float((one - other).abs().max()) > largest:  # False for NaN
                return True
    return False


def _unchanged(*arguments: Any, **keywords: Any) -> Any:
    return next(iter((*arguments, *keywords.values())))


def _pass(network: nn.Module, x: Tensor, kept: int) -> list[_Passed]:
    """Return the calls of all modules in one pass, inner ones first, without known normalizations by the batch."""
    calls: list[_Passed] = []

    def note(module: nn.Module, *values: Any) -> None:
        *given, output = (_rows(value, len(x), kept) for value in values)
        calls.append((module, [row for rows in given for row in rows], output))

    modules = list(network.modules())
    omitted = {module: _unchanged for module in modules if uses_batch_statistics(module)}
    with ExitStack() as stack:
        for context in (preserve_state(network), eager_mode(), patch_forwards(omitted)):
            stack.enter_context(context)
        for module in modules:
            stack.callback(module.register_forward_hook(note, with_kwargs=True).remove)
        stack.enter_context(torch.no_grad())
        network(x)
    return calls


def mixing_layer(network: nn.Module, x: Tensor) -> str | None:
    """Return the layer by which samples act on each other in the network's present mode; empty if none does.

    Some samples are compared in two passes with equal random numbers and other samples beside them. None if there are
    no others: a single sample, or equal ones.
    """
    n = len(x)
    kept = n // 2
    if known_layers(network):
        return ""
    others = x[torch.arange(n, device=x.device) % max(kept, 1)]
    if torch.equal(others, x):
        return None
    pairs = list(zip(_pass(network, x, kept), _pass(network, others, kept), strict=False))
    if not _differ(pairs[-1][0][2], pairs[-1][1][2]):
        return ""
    found = next(
        (
            one[0]
            for one, other in pairs
            if _differ(one[2], other[2]) and not _differ(one[1], other[1])
        ),
        network,
    )
    name = next(name for name, module in network.named_modules() if module is found)
    return f"{type(found).__name__} '{name}'" if name else type(found).__name__


def check_not_mixing(network: nn.Module, x: Tensor) -> bool:
    """Return whether other samples could be seen to change none, in the network's present mode.

    Raises:
        NeverSupported: A layer mixes samples, which is not a known norm.
    """
    layer = mixing_layer(network, x)
    if layer:
        raise NeverSupported(
            f"Samples must not act on each other where each needs gradients of its own; {layer} mixes them. Use "
            "torch's BatchNorm or a layer of gapscope.batch_norm, whose statistics are held constant, or GroupNorm, or "
            "put the layer into evaluation mode if it does not mix there."
        )
    return layer is not None
