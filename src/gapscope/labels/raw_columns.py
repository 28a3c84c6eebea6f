"""Raw frames for a network: their texts become columns, which are no token ids."""

from __future__ import annotations

from typing import Any

from torch import nn

from gapscope.base.errors import InvalidInput
from gapscope.base.foreign_data import TOKENIZE
from gapscope.data.table_encoding import encoding_of
from gapscope.inspection.validation import ready


def refuse_words(network: Any, data: tuple[Any, Any]) -> None:
    """Refuse columns of texts that a network would read as token ids.

    Args:
        network: A module, or anything else.
        data: Encoded frame, or an array of frequencies of words, with the targets.

    Raises:
        InvalidInput: The network takes token ids, and the frame held texts.
    """
    if not isinstance(network, nn.Module) or not _held_texts(data[0]):
        return
    if not any(isinstance(m, nn.Embedding | nn.EmbeddingBag) for m in network.modules()):
        return
    message = f"{type(network).__name__} takes token ids, and the frame holds texts. {TOKENIZE}"
    try:
        prepared = ready(network, data)
    except InvalidInput as error:
        raise InvalidInput(message) from error
    if not prepared.samples.inputs.is_floating_point():
        raise InvalidInput(message)


def _held_texts(columns: Any) -> bool:
    """Return whether columns of an encoded frame were texts; frequencies of words are an array."""
    if not hasattr(columns, "attrs"):
        return True
    return any(column.kind == "category" for column in encoding_of(columns).columns)
