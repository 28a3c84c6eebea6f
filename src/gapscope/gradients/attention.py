"""Forward pass of nn.MultiheadAttention with each projection as a recorded linear layer.

The module's own forward uses the weights of its projections without calling any module, possibly in a fused kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@runtime_checkable
class Projection(Protocol):
    """Recorded linear map by the rows `rows` of weight and bias, all if `rows` is None."""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None, rows: slice | None = None) -> Tensor:
        """Return x @ weight[rows].T + bias[rows]."""
        ...


def can_be_unfolded(module: nn.MultiheadAttention) -> bool:
    """Return True if `attention` equals the module (one packed weight, no extra keys)."""
    return (
        type(module) is nn.MultiheadAttention
        and "forward" not in vars(module)
        and any(parameter.requires_grad for parameter in module.parameters())
        and module.in_proj_weight is not None
        and module.bias_k is None
        and not module.add_zero_attn
    )


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(mask, float("-inf"))


def _split_heads(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)  # (n, heads, places, size)


def attention(module: nn.MultiheadAttention, project: Projection) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Return a forward pass for `module` that does all projections by `project`."""
    original, e, heads = module.forward, module.embed_dim, module.num_heads

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if query.ndim != 3 or (is_causal and attn_mask is None):
            return original(
                query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
            )
        same = query is key and key is value
        if not module.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        weight, bias = module.in_proj_weight, module.in_proj_bias
        assert weight is not None
        if same:
            projected = project(query, weight, bias).split(e, dim=-1)
        else:
            parts = (slice(0, e), slice(e, 2 * e), slice(2 * e, 3 * e))
            projected = [project(x, weight, bias, rows) for x, rows in zip((query, key, value), parts, strict=True)]
        q, k, v = (_split_heads(x, heads) for x in projected)
        scores = (q * (e // heads) ** -0.5) @ k.mT
        if attn_mask is not None:
            mask = _additive(attn_mask, scores.dtype)
            scores = scores + (mask.view(-1, heads, *mask.shape[1:]) if mask.ndim == 3 else mask)
        if key_padding_mask is not None:
            scores = scores + _additive(key_padding_mask, scores.dtype)[:, None, None, :]
        attended = F.dropout(scores.softmax(-1), module.dropout, module.training)
        mixed = (attended @ v).transpose(1, 2).flatten(2)
        outputs = project(mixed, module.out_proj.weight, module.out_proj.bias)
        outputs = outputs if module.batch_first else outputs.transpose(0, 1)
        if not need_weights:
            return outputs, None
        return outputs, attended.mean(1) if average_attn_weights else attended

    return forward
