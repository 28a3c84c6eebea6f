"""Weight normalization by torch's parametrization, and its data-dependent initialization."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from jaxtyping import Shaped
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import is_parametrized

from gapscope.base.arguments import check_arguments
from gapscope.base.errors import InvalidInput, NotMeasurable, check_range
from gapscope.base.random_streams import resolve_generator
from gapscope.inspection.hooks import Weighted, forward_hooks
from gapscope.inspection.outputs import prepare_inputs

Network = TypeVar("Network", bound=nn.Module)


@check_arguments
def weight_normalize(network: Network) -> Network:
    r"""Reparametrize linear and convolutional weights as $w = g\, v / \lVert v \rVert$.

    There is one g per output channel. The function of the network is unchanged (g starts as the norm of w). This is
    torch's `weight_norm` parametrization: g is `layer.parametrizations.weight.original0`, v is `original1`.

    Reference: Salimans and Kingma 2016, eq. 2.

    Args:
        network: Network whose linear and convolutional layers are reparametrized in place; those that are already are
            left as they are.

    Raises:
        InvalidInput: An output channel has only zero weights and thus no direction.
    """
    layers = {
        name: module
        for name, module in network.named_modules()
        if isinstance(module, Weighted) and not is_parametrized(module, "weight")
    }
    for name, module in layers.items():
        empty = int((module.weight.flatten(1) == 0).all(1).sum())
        if empty:
            raise InvalidInput(
                f"Every channel of layer '{name}' needs a weight that is not 0; {empty} channels have none. "
                "Initialize them at random."
            )
    for module in layers.values():
        weight_norm(module, "weight", dim=0)
    return network


@check_arguments
def initialize_from_data(
    network: Network,
    x: Shaped[Tensor, "n ..."],
    *,
    std: float = 0.05,
    generator: torch.Generator | None = None,
) -> Network:
    r"""Sample directions of weight-normalized layers, and set lengths and biases from x.

    $v \sim N(0, \text{std}^2)$; with $t = v x / \lVert v \rVert$ over the batch (and positions), $g = 1/\sigma[t]$ and
    $b = -\mu[t]/\sigma[t]$, layer after layer in one forward pass, so that the outputs of every such layer have
    mean 0 and variance 1 per channel. A layer without a bias keeps its mean; a constant channel keeps g = 1.

    Reference: Salimans and Kingma 2016, eq. 5-6; std = 0.05 is theirs.

    Args:
        network: Network with BatchNorm, PopulationNorm or GhostBatchNorm layers, unchanged unless stated.
        x: Inputs [n, ...] of one batch, on which means and variances are taken.
        std: Standard deviation of v; it sets how fast directions turn, not the function.
        generator: Source of random batches and noise; None for the same ones in every call.

    Raises:
        NotMeasurable: No layer is weight-normalized.
    """
    check_range("std", std, 0, low_open=True)
    layers: dict[str, Any] = {
        name: module
        for name, module in network.named_modules()
        if isinstance(module, Weighted) and is_parametrized(module, "weight")
    }
    if not layers:
        raise NotMeasurable(
            "The network must hold weight-normalized layers; use weight_normalize(network) first."
        )
    generator = resolve_generator(generator)

    def set_from_outputs(name: str, layer: Any, inputs: tuple[Any, ...], outputs: Tensor) -> Tensor:
        is_linear = isinstance(layer, nn.Linear)
        channels = -1 if is_linear else 1
        rows = outputs.movedim(channels, -1)
        mean = rows.flatten(0, -2).mean(0)
        deviation = rows.flatten(0, -2).std(0, unbiased=False)
        deviation = torch.where(deviation > 0, deviation, 1.0)
        length = layer.parametrizations.weight.original0
        length.div_(deviation.view_as(length))
        if layer.bias is None:
            mean = torch.zeros_like(mean)
        else:
            layer.bias.copy_(-mean / deviation)
        return ((rows - mean) / deviation).movedim(-1, channels)

    with torch.no_grad():
        for layer in layers.values():
            parameters = layer.parametrizations.weight
            noise = torch.randn(parameters.original1.shape, generator=generator) * std
            parameters.original1.copy_(noise)
            parameters.original0.fill_(1.0)
            if layer.bias is not None:
                layer.bias.zero_()
        with forward_hooks(layers, set_from_outputs):
            network(prepare_inputs(network, x))
    return network
