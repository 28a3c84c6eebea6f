"""Types of inputs: those of the network's weights, and token ids for an embedding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.inspection.first_pass import first_pass
from gapscope.inspection.network_checks import unwrapped
from gapscope.inspection.outputs import precision_of


def in_network_types(network: Any, samples: Samples) -> Samples:
    """Cast floating-point inputs to the type of the network's weights, with a note.

    Whole numbers of a frame are token ids for a network with an embedding that takes nothing else.
    """
    return _cast(network, _as_token_ids(network, samples))


def _cast(network: Any, samples: Samples) -> Samples:
    """Cast floating-point inputs to the type of the network's weights, with a note."""
    dtype = precision_of(network) if isinstance(network, nn.Module) else None
    inputs = samples.inputs
    if dtype is None or not inputs.is_floating_point() or inputs.dtype == dtype:
        return samples
    note = f"Inputs were converted from {inputs.dtype} to {dtype}, the type of the weights."
    return replace(samples, inputs=inputs.to(dtype), notes=(*samples.notes, note))


def _as_token_ids(network: Any, samples: Samples) -> Samples:
    """Return a frame of whole numbers as integers if the network runs on these alone, other samples as they are."""
    inputs = samples.inputs
    if not samples.columns or not inputs.is_floating_point() or not isinstance(network, nn.Module):
        return samples
    has_embedding = any(isinstance(m, nn.Embedding | nn.EmbeddingBag) for m in network.modules())
    if not has_embedding or not bool((inputs == inputs.round()).all()):
        return samples
    ids = replace(samples, inputs=inputs.long())
    for given in (_cast(network, samples), ids):
        try:
            first_pass(unwrapped(network), given)
        except InvalidInput:
            continue
        return ids if given is ids else samples
    return samples
