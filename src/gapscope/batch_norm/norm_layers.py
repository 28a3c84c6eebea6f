"""Batch-normalizing layers of a network in forward order, and the layers before them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gapscope.base.errors import InvalidInput, NotMeasurable, NotYetSupported, did_you_mean
from gapscope.batch_norm.layers.ghost import GhostBatchNorm1d, GhostBatchNorm2d, GhostBatchNorm3d
from gapscope.batch_norm.layers.population import (
    PopulationNorm1d,
    PopulationNorm2d,
    PopulationNorm3d,
)
from gapscope.inspection.hooks import Weighted, copied_calls, forward_hooks, named_modules
from gapscope.inspection.norms import normalizes_only

# normalization layers by name
Layers = dict[str, Any]

BATCH_KINDS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
POPULATION_KINDS = (PopulationNorm1d, PopulationNorm2d, PopulationNorm3d)
GHOST_KINDS = (GhostBatchNorm1d, GhostBatchNorm2d, GhostBatchNorm3d)
BATCH_NORMS = (*BATCH_KINDS, *POPULATION_KINDS, *GHOST_KINDS)
"""Layers whose evaluation function is gamma (h - running_mean) / sqrt(running_var + eps) + beta."""


def is_norm_layer(module: nn.Module) -> bool:
    """Return whether a module has the evaluation function of `BATCH_NORMS`.

    Subclasses of torch's layers have it unless they have a forward function of their own, which may do more (apply an
    activation, for example).
    """
    return type(module) in BATCH_NORMS or normalizes_only(module)


def is_population_norm(module: nn.Module) -> bool:
    """Return whether a module is a PopulationNorm."""
    return type(module) in POPULATION_KINDS


def has_statistics(module: nn.Module) -> bool:
    """Return whether a module has the running statistics of its inputs, whatever else it does."""
    return is_norm_layer(module) or isinstance(module, _BatchNorm)


def select_layers(candidates: Layers, names: Sequence[str] | None, kind: str) -> Layers:
    """Return the layers of these names, or all (at least one)."""
    for name in names or ():
        if name not in candidates:
            available = ", ".join(map(repr, candidates)) or "it has none"
            raise InvalidInput(
                f"layers must name {kind} of the network: {available}; got {name!r}.{did_you_mean(name, candidates)}"
            )
    if not candidates or (names is not None and not names):
        raise NotMeasurable(f"The network must hold {kind}; it holds none, or none was named.")
    if names is None:
        return candidates
    return {name: candidates[name] for name in names}


def batch_norm_layers(
    network: nn.Module,
    names: Sequence[str] | None = None,
    accepts: Callable[[nn.Module], bool] = is_norm_layer,
) -> Layers:
    """Return accepted layers with running statistics by name, or those named.

    Raises:
        InvalidInput: A name is that of no such layer, or a layer has no running statistics.
        NotMeasurable: There is no such layer, or none are named and a subclass may do more than normalize.
    """
    kinds = POPULATION_KINDS if accepts is is_population_norm else BATCH_NORMS
    kind_names = ", ".join(kind.__name__ for kind in kinds)
    modules = named_modules(network)
    by_name = {name: module for name, module in modules.items() if accepts(module)}
    others = [
        f"'{name}' is a {type(module).__name__}"
        for name, module in modules.items()
        if isinstance(module, _BatchNorm) and name not in by_name
    ]
    if accepts is is_norm_layer and names is None and others:
        raise NotMeasurable(
            f"Normalization layers must only normalize; {', '.join(others[:4])}, whose forward function may do more. "
            "Build it from a BatchNorm and a module after it, or name the other layers where `layers` can be passed."
        )
    layers = select_layers(by_name, names, f"normalization layers ({kind_names})")
    for name, layer in layers.items():
        if layer.running_mean is None:
            raise InvalidInput(
                f"Layer '{name}' must keep running statistics; it has track_running_stats=False. Build it with True."
            )
    return layers


def in_forward_order(network: nn.Module, layers: Layers, x: Tensor) -> list[str]:
    """Return the names of the layers, each called once, in the order of a forward pass."""
    order: list[str] = []
    with forward_hooks(layers, lambda name, *_: order.append(name)), torch.no_grad():
        network(x)
    for name in layers:
        if order.count(name) > 1:
            raise NotYetSupported(
                f"Layer '{name}' must be used once per forward pass; it is used {order.count(name)} times, and its "
                "population would mix several distributions. Give every use its own layer."
            )
        if name not in order:
            raise NotMeasurable(
                f"Layer '{name}' must be used in the forward pass; it is not. Omit it from layers."
            )
    return order


def preceding_layers(network: nn.Module, layers: Layers, x: Tensor) -> dict[str, str]:
    """Map norm names to the linear or convolutional layer that alone feeds them.

    Omitted: normalization layers with any other input (a sum, a pooling), and layers whose output goes through two
    of them.
    """
    linear = {
        name: module
        for name, module in named_modules(network).items()
        if isinstance(module, Weighted)
    }
    with (
        copied_calls(linear) as linear_calls,
        copied_calls(layers, before=True) as layer_calls,
        torch.no_grad(),
    ):
        network(x)
    source_of = {
        call.name: source.name
        for call in layer_calls
        for source in linear_calls
        if call.follows(source)
        and (not isinstance(source.module, nn.Linear) or source.output.ndim == 2)
    }
    sources = list(source_of.values())
    return {name: source for name, source in source_of.items() if sources.count(source) == 1}
