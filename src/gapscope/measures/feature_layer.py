"""The place of a network's features: its encoder, or the input of its last linear layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from gapscope.base.errors import MAX_NAMED, InvalidInput, describe_value, join_names
from gapscope.base.input_layout import InputLayout
from gapscope.inspection.counted_outputs import input_mask
from gapscope.inspection.hooks import ModuleCall, Weighted, module_named, record_module_calls
from gapscope.inspection.outputs import prepare_inputs
from gapscope.inspection.sample_layout import sample_layouts

# Results of encoders by name: sentence-transformers, Hugging Face.
HIDDEN = ("sentence_embedding", "last_hidden_state")
# Layers whose features are in the last dimension, positions before it.
_FEATURES_LAST = (nn.Linear, nn.LayerNorm, nn.Embedding, nn.RMSNorm)
_FEATURES_FIRST = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class FeaturePlace:
    """Module whose input or output holds the features of a network.

    Attributes:
        module: The module.
        is_input: Whether the features are its input, not its output.
        description: The place in words, for messages.
    """

    module: nn.Module
    is_input: bool
    description: str


def _hugging_face(network: nn.Module) -> Any:
    """Return the Hugging Face model that a network is or holds, without adapters (None without one)."""
    # adapters of PEFT pass attributes of their model on, their classes do not have them
    models = (module for module in network.modules() if hasattr(type(module), "base_model_prefix"))
    return next((model for model in models if hasattr(model, "config")), None)


def hidden_states(output: Any) -> Tensor | None:
    """Return the features in the output of a module, None if it holds none."""
    if isinstance(output, Mapping):
        output = next((output[name] for name in HIDDEN if name in output), None)
    if isinstance(output, tuple) and output:
        output = output[0]
    if isinstance(output, Tensor) and output.ndim > 1 and output.is_floating_point():
        return output
    return None


def find_features(network: nn.Module, x: Tensor, layer: str | None) -> FeaturePlace:
    """Return the place of the features of a network that runs on `x`.

    The output of the module called `layer`, if it is given. Else the output of the encoder for networks that are or
    hold a Hugging Face model of token ids, and for Hugging Face models without a head, because a pooler and a head may
    be untrained. Else the output of the
    network, if its last module is an identity in place of a head, or the input of its last linear or convolutional
    layer.

    Raises:
        InvalidInput: No module has this name, or the network has no last layer with inputs of every sample.
    """
    bare = getattr(network, "adapted_from", network)
    if layer is not None:
        return FeaturePlace(module_named(network, layer), False, f"the output of {layer!r}")
    model = _hugging_face(bare)
    encoder = getattr(model, "base_model", None)
    if isinstance(encoder, nn.Module) and (encoder is bare or _embeds_tokens(encoder)):
        return FeaturePlace(encoder, False, f"the output of {type(encoder).__name__}")
    if any(
        type(module).__name__ == "Pooling" for module in bare.children()
    ):  # sentence-transformers
        return FeaturePlace(bare, False, f"the output of {type(bare).__name__}")
    few = prepare_inputs(network, x[:2]).clone()
    calls = record_module_calls(network, few)
    weighted = [call for call in calls if isinstance(call.module, Weighted)]
    if calls and _is_removed_head(calls[-1], weighted):
        return FeaturePlace(calls[-1].module, False, "the output of the network")
    last = next(reversed(weighted), None)
    if (
        last is None
        or getattr(last.input, "ndim", 0) < 2
        or sample_layouts(network, x, {last.name: last.module}, before=True).get(last.name) is None
    ):
        raise InvalidInput(_without_last_layer(last, calls, len(few)))
    place = "the input of the network"
    if last.name:
        place = f"the input of {last.name!r}"
    return FeaturePlace(last.module, True, place)


def _embeds_tokens(encoder: Any) -> bool:
    """Return whether an encoder of Hugging Face embeds token ids (vision models embed patches)."""
    try:
        return isinstance(encoder.get_input_embeddings(), nn.Embedding)
    except (AttributeError, NotImplementedError):
        return False


def _is_removed_head(last: ModuleCall, weighted: list[ModuleCall]) -> bool:
    """Return whether the last module is an identity that does not merely follow the last layer."""
    if not isinstance(last.module, nn.Identity) or hidden_states(last.output) is None:
        return False
    return not weighted or not last.follows(weighted[-1])


def _without_last_layer(last: ModuleCall | None, calls: list[ModuleCall], n: int) -> str:
    """Return the message for a network without a usable last layer, with the layers to choose from."""
    got = "no linear or convolutional layer"
    if last is not None:
        got = f"{last.name!r} with the input {describe_value(last.input)} for {n} samples"
    names = [
        call.name
        for call in calls
        if call.name
        and isinstance(call.output, Tensor)
        and call.output.ndim > 1
        and len(call.output) == n
    ]
    choices = join_names(map(repr, list(dict.fromkeys(names))[-MAX_NAMED:]))
    advice = "Compute the features in a module of the network, and pass its name as layer=."
    if choices:
        advice = f"Pass layer=, for example one of {choices}."
    return (
        f"Features need a last layer with equally many inputs of every sample; got {got}. {advice}"
    )


def token_mask(
    network: nn.Module, form: InputLayout | None, x: Tensor
) -> Bool[Tensor, "n t"] | None:
    """Return which tokens count: the attention mask, or all but the padding (None if unknown)."""
    form = form or InputLayout()
    mask = input_mask(form, x)
    if mask is not None:
        return mask
    parts = form.unpack(x)
    config = getattr(_hugging_face(network), "config", None)
    padding = getattr(config, "pad_token_id", None)
    ids = next((part for part in parts if part.ndim == 2 and not part.is_floating_point()), None)
    if padding is None or ids is None:
        return None
    return ids != padding


def positions_first(features: Float[Tensor, "n ..."], module: nn.Module) -> Float[Tensor, "n ..."]:
    """Return features of positions as [n, ..., d], from feature maps [n, d, ...] if they are such."""
    is_map = features.ndim > 3 and not isinstance(module, _FEATURES_LAST)
    is_map = is_map or (features.ndim > 2 and isinstance(module, _FEATURES_FIRST))
    if is_map:
        return features.movedim(1, -1)
    return features


def pool_positions(
    features: Float[Tensor, "n ... d"], pooling: str, mask: Bool[Tensor, "n t"] | None
) -> Float[Tensor, "n ..."]:
    """Reduce features [n, ..., d] of positions to one row per sample, or return them as they are."""
    if features.ndim == 2 or pooling == "none":
        return features
    rows = features.flatten(1, -2)
    if mask is None or mask.shape != rows.shape[:2]:
        mask = torch.ones(rows.shape[:2], dtype=torch.bool)
    mask = mask.to(rows.device)
    if pooling == "mean":
        weights = mask.to(rows.dtype)[:, :, None]
        return (rows * weights).sum(1) / weights.sum(1).clamp_min(1.0)
    order = torch.arange(rows.shape[1], device=rows.device)
    position = order.expand_as(mask).masked_fill(~mask, -1).amax(1).clamp_min(0)
    if pooling == "first":
        position = order.expand_as(mask).masked_fill(~mask, rows.shape[1] - 1).amin(1)
    return rows[torch.arange(len(rows), device=rows.device), position]
