"""Embedding tables."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from gapscope.base.errors import ReplaceLayer
from gapscope.gradients.contributions import Contribution, EmbeddingContribution
from gapscope.gradients.layer_rules import Call, layer_rule


@layer_rule(nn.Embedding, features_last=True)
def embedding(call: Call, gradient: Float[Tensor, "c n *places e"]) -> list[Contribution]:
    """Add each position's derivative to the row that it read, except for the padding row."""
    module = call.module
    if module.max_norm is not None or module.scale_grad_by_freq:
        raise ReplaceLayer(
            f"Embedding '{call.name}' must have max_norm=None and scale_grad_by_freq=False, which change weights or "
            f"gradients behind autograd; got max_norm={module.max_norm}, "
            f"scale_grad_by_freq={module.scale_grad_by_freq}. Set them so."
        )
    c, n, *_, e = gradient.shape
    rows = call.inputs.reshape(n, -1)
    places = gradient.reshape(c, n, -1, e).transpose(2, 3)
    if module.padding_idx is not None:
        places = places * rows.ne(module.padding_idx)[:, None, :]
    return [EmbeddingContribution((call.parameters["weight"],), rows, places)]
