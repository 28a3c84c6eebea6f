"""Recompute the statistics of batch norm on data."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from gapscope.base.containers import LABEL_NAMES
from gapscope.base.errors import InvalidInput, NotMeasurable, check_range
from gapscope.base.random_streams import resolve_generator
from gapscope.base.samples import InputLayout, as_samples, pack_inputs, slices
from gapscope.base.type_guards import is_mapping
from gapscope.batch_norm.layers.population import PopulationNorm
from gapscope.batch_norm.norm_layers import BATCH_NORMS, POPULATION_KINDS, batch_norm_layers, in_forward_order
from gapscope.inspection.hooks import forward_hooks, named_modules
from gapscope.inspection.moments import ChannelMoments
from gapscope.inspection.network_adapter import NetworkAdapter
from gapscope.inspection.outputs import inspection_mode, prepare_inputs, samples_per_pass

ONE_CHUNK_BYTES = 2**31


class _StopForward(Exception):
    """End of a forward pass after the layer of interest."""


def _pack_batch(batch: Any) -> tuple[Tensor, InputLayout | None]:
    """Return the inputs of a loader's batch as one tensor, with their layout if several."""
    inputs = batch[0] if isinstance(batch, list | tuple) else batch
    if isinstance(inputs, Tensor):
        return inputs, None
    if is_mapping(inputs):
        inputs = {
            str(name): part for name, part in inputs.items() if isinstance(part, Tensor) and name not in LABEL_NAMES
        }
    if not inputs:
        raise InvalidInput(f"A loader must yield tensors of inputs; got a batch of type {type(batch).__name__}.")
    return pack_inputs(inputs)


class _InputStream:
    """Repeatable stream of the same training inputs, chunk by chunk."""

    def __init__(
        self, network: nn.Module, data: Any, samples: int, chunk_size: int | None, generator: torch.Generator | None
    ) -> None:
        self.limit = samples
        self.loader: DataLoader[Any] | None = data if isinstance(data, DataLoader) else None
        if self.loader is not None:
            self.random_state = torch.get_rng_state()
            return
        whole = as_samples(data)
        inputs = whole.inputs
        if len(inputs) > samples:
            inputs = inputs[torch.randperm(len(inputs), generator=resolve_generator(generator))[:samples]]
        # an adapter reads the layout of the inputs itself
        self.inputs, self.layout = inputs, None if isinstance(network, NetworkAdapter) else whole.form
        # one chunk takes one forward pass in all, several take one pass per layer
        self.chunk_size = samples_per_pass(
            _caller(network, self.layout), inputs, chunk_size, at_most=len(inputs), bytes_at_most=ONE_CHUNK_BYTES
        )

    def __iter__(self) -> Iterator[tuple[Tensor, InputLayout | None]]:
        if self.loader is None:
            yield from ((self.inputs[part], self.layout) for part in slices(len(self.inputs), self.chunk_size))
            return
        # A shuffling loader samples its order from the global state: the same state gives the same samples again.
        torch.set_rng_state(self.random_state)
        seen = 0
        for batch in self.loader:
            inputs, layout = _pack_batch(batch)
            yield inputs[: self.limit - seen], layout
            seen += len(inputs)
            if seen >= self.limit:
                return

    @property
    def is_one_chunk(self) -> bool:
        return self.loader is None and len(self.inputs) <= self.chunk_size


def _caller(network: nn.Module, layout: InputLayout | None) -> nn.Module:
    """Return the network that takes the packed inputs of a batch."""
    return network if layout is None else NetworkAdapter(network, layout)


def _write(name: str, layer: Any, moments: ChannelMoments) -> None:
    mean, variance = moments.mean, moments.variance
    if not bool((mean.isfinite() & variance.isfinite()).all()):
        bad = int((~(mean.isfinite() & variance.isfinite())).sum())
        raise NotMeasurable(
            f"Population statistics must be finite; {bad} of {len(mean)} channels of layer '{name}' hold NaN or "
            "infinity. No statistics were changed: check the weights before this layer."
        )
    layer.running_mean.copy_(mean)
    layer.running_var.copy_(variance)


def _measure(network: nn.Module, layers: dict[str, Any], stream: _InputStream) -> dict[str, tuple[Tensor, Tensor]]:
    first = next(iter(stream), None)
    if first is None:
        raise InvalidInput("data must hold at least one sample; the loader is empty.")
    order = in_forward_order(_caller(network, first[1]), layers, prepare_inputs(network, first[0][:1]))
    for group in [order] if stream.is_one_chunk else [[name] for name in order]:
        moments = {name: ChannelMoments() for name in group}

        def add(
            name: str, layer: nn.Module, inputs: tuple[Any, ...], moments: dict[str, ChannelMoments] = moments
        ) -> None:
            moments[name].update(inputs[0])
            if not stream.is_one_chunk:
                raise _StopForward
            _write(name, layer, moments[name])

        with forward_hooks({name: layers[name] for name in group}, add, before=True), torch.no_grad():
            for inputs, layout in stream:
                try:
                    _caller(network, layout)(prepare_inputs(network, inputs))
                except _StopForward:
                    continue
        for name in group:
            _write(name, layers[name], moments[name])
    return {name: (layer.running_mean.clone(), layer.running_var.clone()) for name, layer in layers.items()}


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

    The layers are done in the order in which they run, each with all earlier ones already updated, so that afterwards
    every layer's statistics are those of the network as it stands. Dropout is off. Statistics are computed in
    float64, the variance is the biased one. Cost: where the samples fit one chunk, one forward pass; else one pass per
    layer, up to that layer.

    Reference: Luo et al. 2019, section 5 (10 000 samples).

    Args:
        data: Training inputs: x, (x, y), Samples, a Dataset, or a DataLoader (streamed, with its own batch size; a
            shuffling one gives the same samples to each layer, unless it has a generator of its own).
        layers: Names of layers; BatchNorm and GhostBatchNorm layers can be named too (their running statistics become
            exact). None for every PopulationNorm.

    Raises:
        NotMeasurable: There is no such layer, or statistics are not finite (then nothing is changed).

    >>> from gapscope.batch_norm.layers.population import PopulationNorm1d
    >>> layer = PopulationNorm1d(1)
    >>> refresh_population(layer, torch.tensor([[1.0], [5.0]]))
    >>> layer.running_mean.item(), layer.running_var.item()
    (3.0, 4.0)
    """
    check_range("samples", samples, 1)
    refreshed = batch_norm_layers(network, layers, BATCH_NORMS if layers is not None else POPULATION_KINDS)
    with inspection_mode(network):
        stream = _InputStream(network, data, samples, chunk_size, generator)
        statistics = _measure(network, refreshed, stream)
    with torch.no_grad():
        for name, (mean, variance) in statistics.items():
            layer = refreshed[name]
            layer.running_mean.copy_(mean)
            layer.running_var.copy_(variance)
            if isinstance(layer, PopulationNorm):
                layer.num_batches_tracked.add_(1)


def with_data_statistics(network: nn.Module, x: Tensor) -> nn.Module:
    """Return the network, or a copy with batch norm statistics of these inputs where they were initial."""
    # With its initial statistics a batch norm layer does not normalize, so that an untrained network in evaluation mode
    # is another function than the one that training starts from.
    fresh = [
        name
        for name, layer in named_modules(network).items()
        if isinstance(layer, BATCH_NORMS) and layer.running_mean is not None and layer.running_var is not None
        if bool((layer.running_mean == 0).all() & (layer.running_var == 1).all())
    ]
    if not fresh:
        return network
    with torch.inference_mode(False):
        network = copy.deepcopy(network)
    refresh_population(network, x, layers=fresh)
    return network
