"""Weights that layers compute from other parameters: parametrizations, weight and spectral norm, pruning."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from gapscope.inspection.copies import copy_network
from gapscope.inspection.hooks import Weighted, named_modules
from gapscope.inspection.memoization import memoize
from gapscope.inspection.network_checks import unwrapped

_HOOKS = (WeightNorm, SpectralNorm, BasePruningMethod)


def _is_computed(module: nn.Module) -> bool:
    """Return whether a known way computes a weight of a module, or a layer has it as a buffer."""
    if isinstance(module, Weighted) and module._buffers.get("weight") is not None:
        return True
    hooks = module._forward_pre_hooks.values()
    return parametrize.is_parametrized(module) or any(isinstance(hook, _HOOKS) for hook in hooks)


def _replace(module: nn.Module, name: str, values: Tensor, *, trainable: bool) -> None:
    """Make the values of a weight a parameter of its module."""
    vars(module).pop(name, None)
    parameter = nn.Parameter(values.detach().clone(), requires_grad=trainable)
    module.register_parameter(name, parameter)


def _fix_hooked(module: nn.Module) -> None:
    for key, hook in list(module._forward_pre_hooks.items()):
        if not isinstance(hook, _HOOKS):
            continue
        computes: Any = hook
        if isinstance(hook, BasePruningMethod):
            name, values = computes._tensor_name, computes.apply_mask(module)
        elif isinstance(hook, SpectralNorm):
            # as in evaluation mode: a step of its power iteration would change the norm
            name, values = hook.name, hook.compute_weight(module, do_power_iteration=False)
        else:
            name, values = hook.name, computes.compute_weight(module)
        sources = [
            module._parameters.pop(f"{name}_{end}")
            for end in ("orig", "g", "v")
            if f"{name}_{end}" in module._parameters
        ]
        del module._forward_pre_hooks[key]
        trainable = any(source is not None and source.requires_grad for source in sources)
        _replace(module, name, values, trainable=trainable)


def _fix_parametrized(module: Any) -> None:
    computed = {
        name: (getattr(module, name), any(p.requires_grad for p in sources.parameters()))
        for name, sources in module.parametrizations.items()
    }
    # not `remove_parametrizations`: it changes the class, which the original of a copy has as well
    del module._modules["parametrizations"]
    module.__class__ = type(module).__bases__[0]
    for name, (values, trainable) in computed.items():
        _replace(module, name, values, trainable=trainable)


@memoize
def with_plain_weights(network: nn.Module) -> nn.Module:
    """Return the network, or a copy in evaluation mode in which computed weights are parameters of their values.

    A weight is trainable if one of the parameters is that it is computed from, which the copy does not have.
    """
    bare = unwrapped(network)
    if not any(map(_is_computed, named_modules(bare).values())):
        return network
    result = copy_network(bare).eval()
    for module in named_modules(result).values():
        if isinstance(module, Weighted) and "weight" in module._buffers:
            _replace(module, "weight", module._buffers.pop("weight"), trainable=False)  # type: ignore[arg-type]
        with torch.no_grad():
            _fix_hooked(module)
            if parametrize.is_parametrized(module):
                _fix_parametrized(module)
    return result
