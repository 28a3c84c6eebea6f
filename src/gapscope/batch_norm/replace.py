"""Replacement of a network's batch normalization by another kind."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from gapscope.base.arguments import check_arguments
from gapscope.base.errors import InvalidInput, ReplaceLayer, check_choice
from gapscope.base.options import check_known
from gapscope.batch_norm.layers import partial
from gapscope.batch_norm.layers.population import PopulationNorm
from gapscope.batch_norm.layers.weight import Network, weight_normalize
from gapscope.batch_norm.norm_layers import (
    BATCH_KINDS,
    BATCH_NORMS,
    GHOST_KINDS,
    POPULATION_KINDS,
    is_norm_layer,
    preceding_layers,
    select_layers,
)
from gapscope.inspection.copies import copy_network
from gapscope.inspection.hooks import named_modules
from gapscope.inspection.norms import evaluation_map
from gapscope.inspection.outputs import inspection_mode, prepare_inputs

KINDS: dict[str, tuple[type[nn.Module], ...]] = {
    "batch": BATCH_KINDS,
    "population": POPULATION_KINDS,
    "ghost": GHOST_KINDS,
    "mean_only": (
        partial.MeanOnlyBatchNorm1d,
        partial.MeanOnlyBatchNorm2d,
        partial.MeanOnlyBatchNorm3d,
    ),
    "variance_only": (
        partial.VarianceOnlyBatchNorm1d,
        partial.VarianceOnlyBatchNorm2d,
        partial.VarianceOnlyBatchNorm3d,
    ),
    "none": (nn.Identity, nn.Identity, nn.Identity),
}
"""Replacements of batch normalization in one, two and three dimensions."""


def _incompatibility(layer: Any, kind: str, has_feeder: bool, needs_feeder: bool) -> str:
    """Return why replacing a layer would change its function (empty if it would not)."""
    if not is_norm_layer(layer) or isinstance(layer, nn.SyncBatchNorm):
        return f"a {type(layer).__name__} may do more than normalize; use a BatchNorm"
    if layer.running_mean is None:
        return "it has no running statistics and thus no evaluation function; use track_running_stats=True"
    if needs_feeder and not has_feeder:
        return "its input is not the output of one linear or convolutional layer that could be normalized or rescaled"
    if kind in ("mean_only", "variance_only") and layer.weight is None:
        return f"it has no gamma and beta to absorb what '{kind}' omits; use affine=True"
    return ""


def _build(kind: str, layer: Any, options: dict[str, Any]) -> Any:
    kinds = [isinstance(layer, each) for each in BATCH_NORMS]
    cls = KINDS[kind][kinds.index(True) % 3]
    parameters = inspect.signature(cls).parameters
    settings = {
        "eps": layer.eps,
        "momentum": 0.1 if isinstance(layer, PopulationNorm) else layer.momentum,
        "affine": layer.weight is not None,
        "device": layer.running_mean.device,
        "dtype": layer.running_mean.dtype,
    }
    check_known(cls.__name__, options, parameters)
    return cls(
        layer.num_features,
        **{name: v for name, v in settings.items() if name in parameters} | options,
    )


def _carry_state(old: Any, new: Any, kind: str, absorbed: Tensor | None) -> None:
    """Give `new` the evaluation function of `old`, except a scale absorbed by its feeder."""
    scale, shift = evaluation_map(old)
    names = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    state: dict[str, Tensor | None] = {name: getattr(old, name) for name in names}
    if kind == "mean_only":
        state |= {"weight": scale}
        if absorbed is not None:
            state |= {"running_mean": old.running_mean * absorbed}
    if (
        kind == "variance_only"
    ):  # s h + t = (s sigma) h / sigma + t, where sigma is that of the new layer
        variance = old.running_var.double() + (
            old.running_mean.double().square() if new.rms else 0.0
        )
        state |= {
            "weight": scale * (variance + new.eps).sqrt(),
            "bias": shift,
            "running_var": variance,
        }
    for name, value in state.items():
        target = getattr(new, name)
        if target is not None and value is not None:
            target.copy_(value)
    for name in ("weight", "bias"):
        if getattr(old, name) is not None and getattr(new, name) is not None:
            getattr(new, name).requires_grad_(getattr(old, name).requires_grad)


def _rescale(feeder: Any, scale: Tensor, shift: Tensor | None) -> None:
    """Multiply the outputs of a linear layer by `scale` and, unless None, add `shift`."""
    if is_parametrized(feeder, "weight"):
        weight = feeder.parametrizations.weight.original0
    else:
        weight = feeder.weight
    weight.mul_(scale.view(-1, *[1] * (weight.ndim - 1)).to(weight.dtype))
    if feeder.bias is not None:
        feeder.bias.mul_(scale)
        if shift is not None:
            feeder.bias.add_(shift)
    elif shift is not None:
        feeder.bias = nn.Parameter(shift.to(weight.dtype))


def _make_replacement(
    old: Any, kind: str, feeder: Any | None, weight_norm: bool, options: dict[str, Any]
) -> nn.Module:
    if feeder is not None and weight_norm:
        weight_normalize(feeder)
    if kind == "none":
        _rescale(feeder, *evaluation_map(old))
        return nn.Identity()
    absorbed = None
    if kind == "mean_only" and weight_norm:
        options = {"scale": False} | options
        absorbed, _ = evaluation_map(old)
        _rescale(feeder, absorbed, None)
    new = _build(kind, old, options)
    _carry_state(old, new, kind, absorbed)
    return new.train(old.training)


def _outputs(network: nn.Module, x: Tensor) -> Tensor:
    with inspection_mode(network), torch.no_grad():
        return network(prepare_inputs(network, x))


@check_arguments
def replace_batch_norm(
    network: Network,
    kind: str,
    *,
    weight_norm: bool = False,
    inputs: Shaped[Tensor, "n ..."] | None = None,
    layers: Sequence[str] | None = None,
    **options: Any,
) -> Network:
    r"""Replace batch normalization by another kind with the same evaluation function.

    The evaluation function is $y = s h + t$ with $s = \gamma/\sigma$, $t = \beta - s\mu$ of the running statistics.
    "batch", "population" and "ghost" keep all parameters and statistics; "mean_only" sets gamma = s; "variance_only"
    sets beta = t; "none" merges s and t into the weights and bias of the layer before (as in fine-tuning without batch
    norm; the paper omits the bias). In training mode the kinds give different outputs.

    Args:
        network: Network with BatchNorm, PopulationNorm or GhostBatchNorm layers, unchanged unless stated.
        kind: "batch", "population", "ghost", "mean_only", "variance_only" or "none".
        weight_norm: Whether to weight-normalize the linear or convolutional layer before each replaced layer. With
            "mean_only" its length g replaces gamma (Salimans and Kingma 2016).
        inputs: A few inputs [n, ...]; "none" and `weight_norm` need them to find the layer before each normalization.
        layers: Names as in `network.named_modules()`; None for all.
        **options: Settings of the new layers (`ghost_size`, `detach`, `rms`, `momentum`, `eps`, ...).

    Raises:
        InvalidInput: `kind`, a layer's name or an option is unknown, or `inputs` is missing.
        ReplaceLayer: The function of a layer cannot be preserved.

    Reference: Luo et al. 2019, sections 2.1 (eq. 4) and 5; appendix B.2 for "none".
    """
    check_choice("kind", kind, KINDS)
    needs_feeder = weight_norm or kind == "none"
    if needs_feeder and inputs is None:
        raise InvalidInput(
            f"Got kind={kind!r}, weight_norm={weight_norm} without inputs; they are needed to find the layer before "
            "each normalization. Pass a few: inputs=x[:2]."
        )
    network = copy_network(network)
    kinds = (*BATCH_NORMS, nn.SyncBatchNorm)
    norm_layers = {
        name: module for name, module in network.named_modules() if isinstance(module, kinds)
    }
    norm_layers = select_layers(norm_layers, layers, "batch-normalization layers")
    feeders: dict[str, str] = {}
    if needs_feeder and inputs is not None:
        expected = _outputs(network, inputs)
        with inspection_mode(network):
            feeders = preceding_layers(network, norm_layers, prepare_inputs(network, inputs))
    problems = [
        f"layer '{name}': {reason}"
        for name, layer in norm_layers.items()
        if (reason := _incompatibility(layer, kind, name in feeders, needs_feeder))
    ]
    if problems:
        raise ReplaceLayer(
            f"Replacing by '{kind}' must keep the evaluation function, which it cannot for {'; '.join(problems)}. "
            "Name the other layers in `layers`."
        )
    # of an adapted network under the names of `preceding_layers`, which are those of the user's network
    modules = named_modules(network)
    with torch.no_grad():
        for name, layer in norm_layers.items():
            feeder = None
            if name in feeders:
                feeder = modules[feeders[name]]
            new: Any = _make_replacement(layer, kind, feeder, weight_norm, options)
            if not name:
                return new
            network.set_submodule(name, new)
    if needs_feeder and inputs is not None:
        error = float(
            (_outputs(network, inputs) - expected).abs().max()
            / expected.abs().max().clamp_min(1e-30)
        )
        if not error <= 1e-3:
            raise ReplaceLayer(
                f"Replacing by '{kind}' must keep the outputs; they changed by {error:.1e} of the largest. Probably "
                "the layer before a normalization has another consumer: name the layers to replace."
            )
    return network
