"""Recompute the statistics of batch norm on data."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from gapscope.base.arguments import check_arguments
from gapscope.base.budget import MAX_BYTES
from gapscope.base.errors import NotMeasurable, check_range
from gapscope.base.random_streams import resolve_generator
from gapscope.base.samples import as_samples, slices
from gapscope.batch_norm.layers.population import PopulationNorm
from gapscope.batch_norm.norm_layers import (
    Layers,
    batch_norm_layers,
    has_statistics,
    in_forward_order,
    is_population_norm,
)
from gapscope.inspection.copies import copy_network
from gapscope.inspection.hooks import forward_hooks, named_modules
from gapscope.inspection.memoization import memoize
from gapscope.inspection.moments import ChannelMoments
from gapscope.inspection.network_adapter import NetworkAdapter
from gapscope.inspection.outputs import inspection_mode, prepare_inputs, samples_per_pass


class _StopForward(Exception):
    """End of a forward pass after the layer of interest."""


def _select_inputs(
    network: nn.Module, data: Any, samples: int, generator: torch.Generator | None
) -> tuple[nn.Module, Tensor]:
    """Return the inputs for the statistics, and the network that takes them."""
    selected = as_samples(data, at_most=samples)
    inputs = selected.inputs
    if isinstance(data, DataLoader):
        inputs = inputs[:samples]
    elif len(selected) > samples:
        inputs = inputs[
            torch.randperm(len(selected), generator=resolve_generator(generator))[:samples]
        ]
    # an adapter reads the layout of the inputs itself
    is_ready = selected.form is None or isinstance(network, NetworkAdapter)
    return network if is_ready else NetworkAdapter(network, selected.form), inputs


def _write(name: str, layer: Any, moments: ChannelMoments) -> None:
    mean = moments.mean
    variance = moments.variance
    bad = int((~(mean.isfinite() & variance.isfinite())).sum())
    if bad:
        raise NotMeasurable(
            f"Population statistics must be finite; {bad} of {len(mean)} channels of layer '{name}' hold NaN or "
            "infinity. No statistics were changed: check the weights before this layer."
        )
    layer.running_mean.copy_(mean)
    layer.running_var.copy_(variance)


def population_chunk(network: nn.Module, inputs: Tensor, chunk_size: int | None) -> int:
    """Return the samples per pass of `refresh_population`: all of them, if they fit into memory."""
    return samples_per_pass(
        network, inputs, chunk_size, at_most=len(inputs), bytes_at_most=MAX_BYTES
    )


def _measure(
    network: nn.Module, inputs: Tensor, layers: Layers, chunk_size: int | None
) -> dict[str, tuple[Tensor, Tensor]]:
    # with one chunk a single forward pass serves all layers, with several every layer needs a pass
    size = population_chunk(network, inputs, chunk_size)
    is_one_chunk = len(inputs) <= size
    order = in_forward_order(network, layers, prepare_inputs(network, inputs[:1]))
    for group in [order] if is_one_chunk else [[name] for name in order]:
        moments = {name: ChannelMoments() for name in group}

        def add(
            name: str,
            layer: nn.Module,
            h: tuple[Any, ...],
            moments: dict[str, ChannelMoments] = moments,
        ) -> None:
            moments[name].update(h[0])
            if not is_one_chunk:
                raise _StopForward
            _write(name, layer, moments[name])

        with (
            forward_hooks({name: layers[name] for name in group}, add, before=True),
            torch.no_grad(),
        ):
            for part in slices(len(inputs), size):
                with contextlib.suppress(_StopForward):
                    network(prepare_inputs(network, inputs[part]))
        for name in group:
            _write(name, layers[name], moments[name])
    return {
        name: (layer.running_mean.clone(), layer.running_var.clone())
        for name, layer in layers.items()
    }


@check_arguments
def refresh_population(
    network: nn.Module,
    data: Any,
    *,
    samples: int = 10_000,
    layers: Sequence[str] | None = None,
    chunk_size: int | None = None,
    generator: torch.Generator | None = None,
) -> None:
    r"""Set mean and variance of population-normalizing layers to those of training samples.

    Layers are updated in forward order, each after all earlier ones. Dropout is off, statistics are computed in
    float64, the variance is the biased one. Cost: one forward pass if the samples fit one chunk, else one pass per
    layer, up to that layer.

    Reference: Luo et al. 2019, section 5 (10 000 samples).

    Args:
        network: Network with BatchNorm, PopulationNorm or GhostBatchNorm layers, unchanged unless stated.
        data: Inputs with targets in any form (pair of tensors, Samples, Dataset, DataLoader), used as the population.
        samples: Number of samples: the first ones of a DataLoader, random ones of other data.
        layers: Names of layers, also of BatchNorm and GhostBatchNorm layers (their running statistics become exact).
            None for every PopulationNorm; in a network without any, for every layer.
        chunk_size: Samples per pass, without effect beyond rounding; None: as many as memory allows, up to a maximum.
        generator: Source of random batches and noise; None for the same ones in every call.

    Raises:
        NotMeasurable: There is no such layer, or statistics are not finite (nothing is changed).
    """
    check_range("samples", samples, 1)
    has_population = any(map(is_population_norm, named_modules(network).values()))
    only_population = layers is None and has_population
    refreshed = batch_norm_layers(
        network, layers, is_population_norm if only_population else has_statistics
    )
    with inspection_mode(network):
        statistics = _measure(
            *_select_inputs(network, data, samples, generator), refreshed, chunk_size
        )
    with torch.no_grad():
        for name, (mean, variance) in statistics.items():
            layer = refreshed[name]
            layer.running_mean.copy_(mean)
            layer.running_var.copy_(variance)
            if isinstance(layer, PopulationNorm):
                layer.num_batches_tracked.add_(1)


@memoize
def with_data_statistics(network: nn.Module, x: Tensor) -> nn.Module:
    """Return the network, or a copy whose initial batch norm statistics are replaced."""
    # With its initial statistics a batch norm layer does not normalize: in evaluation mode an untrained network is not
    # the function from which training starts.
    modules: Layers = named_modules(network)
    initial = [
        name
        for name, layer in modules.items()
        if has_statistics(layer)
        and layer.running_mean is not None
        and layer.running_var is not None
        if bool((layer.running_mean == 0).all() & (layer.running_var == 1).all())
    ]
    if not initial:
        return network
    network = copy_network(network)
    refresh_population(network, x, layers=initial)
    return network
