"""Outputs that count: those at positions with a label, or without labels at those that an attention mask has.

Everything that sums or averages over the outputs of positions (kernels, penalties, input Jacobians) leaves out the
others here, so that padding changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor

from gapscope.base.input_layout import InputLayout
from gapscope.base.samples import Samples
from gapscope.base.targets import IGNORED
from gapscope.inspection.network_adapter import NetworkAdapter

MASKS = ("attention_mask", "mask")
"""Names of inputs [n, T] that tell which tokens count."""


def input_mask(form: InputLayout | None, x: Shaped[Tensor, "n ..."]) -> Bool[Tensor, "n t"] | None:
    """Return which tokens count by an input of the name of a mask; None without one."""
    if form is None or not set(MASKS) & set(form.names or ()):
        return None
    named = dict(zip(form.names or (), form.unpack(x), strict=True))
    masks = [named[name] != 0 for name in MASKS if name in named and named[name].ndim == 2]
    return masks[0] if masks else None


def mask_positions(mask: Bool[Tensor, "n t"], shape: Sequence[int]) -> Bool[Tensor, "n a b"] | None:
    """Return which positions count by a mask of tokens, in the form of `counted_outputs`; None if it is not of them.

    Args:
        mask: Which tokens count.
        shape: Shape of the outputs, [n, T, ...] as of language models, or [n, K, T]; the first if both fit.
    """
    if len(shape) > 2 and shape[1] == mask.shape[1]:
        return mask[:, :, None]
    return mask[:, None] if tuple(shape[2:]) == tuple(mask.shape[1:]) else None


def mask_notes(samples: Samples, shape: Sequence[int]) -> list[str]:
    """Return a note if both axes of outputs of this shape [n, T, T] could be that of the tokens of a mask."""
    mask = input_mask(samples.form, samples.inputs) if samples.targets is None else None
    if mask is None or len(shape) != 3 or {*shape[1:]} != {mask.shape[1]}:
        return []
    return [
        f"Outputs {list(shape[1:])} per sample have as many classes as the mask has tokens: they are read as [tokens, "
        "classes]. If the classes are first, pass labels of the tokens, -100 where they do not count."
    ]


def counted_outputs(positions: Tensor | None, k: int) -> Bool[Tensor, "n k"] | None:
    """Return which of k outputs per sample count; None if all do.

    Args:
        positions: Which positions count, [n, 1, P] for outputs with all positions of the first class first, [n, P, 1]
            for those with all classes of the first position first; None if all do.
        k: Number of outputs.
    """
    if positions is None or not positions[:1].numel() or k % positions[:1].numel():
        return None
    n, before, _ = positions.shape
    rest = k // positions[0].numel()
    shape = (n, rest, -1) if before == 1 else (n, -1, rest)
    return positions.expand(*shape).flatten(1)


def with_counted(network: Any, samples: Samples) -> Any:
    """Return an adapted network that knows which outputs count of these samples, passed together."""
    if not isinstance(network, NetworkAdapter) or network.class_axis is None:
        return network
    positions = None
    if samples.targets is None:
        mask = input_mask(samples.form, samples.inputs)
        if mask is not None:
            positions = mask_positions(mask, (len(mask), *network.shape))
    elif samples.is_dense and samples.y[0].numel() == network.n_positions:
        positions = (samples.y.flatten(1) != IGNORED)[:, None]
    if positions is None or bool(positions.all()):
        return network
    return network.with_changes(counted=positions)


def counted_of(network: Any, k: int, device: torch.device) -> Bool[Tensor, "n k"] | None:
    """Return which of k outputs of the samples count, by a network from `with_counted`; None if all do."""
    counted = counted_outputs(getattr(network, "counted", None), k)
    return None if counted is None else counted.to(device)
