"""Batch norm before training, with the statistics of the data."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from gapscope.batch_norm.norm_layers import BATCH_NORMS
from gapscope.batch_norm.refresh import refresh_population
from gapscope.inspection.hooks import named_modules


def _is_fresh(layer: nn.Module) -> bool:
    """Return whether a batch norm layer still has its initial statistics (0 and 1)."""
    mean, variance = getattr(layer, "running_mean", None), getattr(layer, "running_var", None)
    return mean is not None and variance is not None and bool((mean == 0).all() & (variance == 1).all())


def with_data_statistics(network: nn.Module, x: Tensor) -> nn.Module:
    """Return the network with batch norm statistics of these inputs, if they were initial.

    With its initial statistics a batch norm layer does not normalize, so that an untrained network in evaluation mode
    is another function than the one that training starts from.

    Returns:
        The network itself if it has no fresh batch norm layer.
    """
    fresh = [
        name for name, layer in named_modules(network).items() if isinstance(layer, BATCH_NORMS) and _is_fresh(layer)
    ]
    if not fresh:
        return network
    with torch.inference_mode(False):
        network = copy.deepcopy(network)
    refresh_population(network, x, layers=fresh)
    return network
