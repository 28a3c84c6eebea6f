"""Layer rules: linear, embedding, PReLU, convolution, normalization and attention layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from gapscope.gradients.contributions import (
    Contribution,
    DenseJacobian,
    EmbeddingContribution,
    OuterProductFactors,
)
from gapscope.gradients.layer_rules import Call, layer_rule
from gapscope.gradients.layouts import PrecomputedColumns, Tokens, Windows
from gapscope.inspection.norms import Normalizing, uses_batch_statistics


@layer_rule(nn.Linear, NonDynamicallyQuantizableLinear, features_last=True)
def linear(call: Call, gradient: Float[Tensor, "c n *positions o"]) -> list[Contribution]:
    r"""$J = \sum_t g_t (x_t, 1)^\top$ over all positions t of the middle dimensions."""
    c, n, *_, o = gradient.shape
    g = gradient.reshape(c, n, -1, o).transpose(2, 3)  # [C, N, O, T]
    weight = call.parameters.get("weight")
    bias = call.parameters.get("bias")
    if weight is None:
        assert bias is not None
        return [DenseJacobian((bias,), g.sum(3))]
    parameters = (weight,) if bias is None else (weight, bias)
    return [OuterProductFactors(parameters, call.inputs, g, Tokens(ones=bias is not None))]


@layer_rule(nn.Embedding, features_last=True)
def embedding(call: Call, gradient: Float[Tensor, "c n *positions e"]) -> list[Contribution]:
    """Add each position's derivative to the row that it read, except for the padding row."""
    module = call.module
    c, n, *_, e = gradient.shape
    rows = call.inputs.reshape(n, -1)
    g = gradient.reshape(c, n, -1, e).transpose(2, 3)  # [C, N, E, T]
    if module.padding_idx is not None:
        g = g * rows.ne(module.padding_idx)[:, None, :]
    return [EmbeddingContribution((call.parameters["weight"],), rows, g)]


@layer_rule(nn.PReLU)
def prelu(call: Call, gradient: Float[Tensor, "c n *output"]) -> list[Contribution]:
    """Multiply by the negative part of the input, per channel (dimension 1) or summed."""
    weight = call.parameters["weight"]
    # y = max(x, 0) + w min(x, 0) has dy/dw = min(x, 0)
    values = gradient * call.inputs.clamp(max=0)
    if weight.numel() == 1:
        return [DenseJacobian((weight,), values.flatten(2).sum(2, keepdim=True))]
    return [DenseJacobian((weight,), values.flatten(3).sum(3) if values.ndim > 3 else values)]


def per_dimension(value: int | Sequence[int], dimensions: int) -> tuple[int, ...]:
    """Return a convolution's setting for every dimension, as torch reads it: one number stands for all."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * dimensions if len(values) == 1 else values


def _padded(module: Any, inputs: Tensor, layout: Windows) -> Tensor:
    """Pad as the layer does: by numbers or "same", and in its padding mode."""
    # torch reads the settings at the call for zeros, and those of the layer's construction in other modes
    if module.padding_mode != "zeros":
        widths = module._reversed_padding_repeated_twice
        return F.pad(inputs, widths, mode=module.padding_mode) if any(widths) else inputs
    if module.padding == "valid":
        return inputs
    if module.padding == "same":
        totals = [d * (k - 1) for d, k in zip(layout.dilation, layout.kernel_size, strict=True)]
        pairs = [(total // 2, total - total // 2) for total in totals]
    else:
        pairs = [(width, width) for width in per_dimension(module.padding, inputs.ndim - 2)]
    widths = [width for pair in reversed(pairs) for width in pair]
    return F.pad(inputs, widths) if any(widths) else inputs


def _windows(module: Any, weight: Tensor, *, ones: bool) -> Windows:
    kernel_size = tuple(weight.shape[2:])
    stride, dilation = (
        per_dimension(s, len(kernel_size)) for s in (module.stride, module.dilation)
    )
    return Windows(ones, kernel_size, stride, dilation)


def _grouped(
    columns: Float[Tensor, "n gk t"],
    gradients: Float[Tensor, "c n go t"],
    groups: int,
    *,
    transposed: bool,
) -> Float[Tensor, "c n p"]:
    """Return the Jacobian of a grouped weight, group by group."""
    (n, _, t) = columns.shape
    c = gradients.shape[0]
    # Channels of group i of the output see those of group i of the input alone: one product per sample and group,
    # [C O, T] @ [T, K], or its transpose, because a transposed convolution has the weight [K, O].
    columns = columns.reshape(n, groups, -1, t)
    gradients = gradients.reshape(c, n, groups, -1, t).permute(1, 2, 0, 3, 4)
    # [N, groups, C, O, K]
    jacobian = torch.matmul(gradients.flatten(2, 3), columns.mT).unflatten(2, (c, -1))
    jacobian = jacobian.mT if transposed else jacobian
    return jacobian.permute(2, 0, 1, 3, 4).flatten(2)


@layer_rule(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def convolution(call: Call, gradient: Float[Tensor, "c n o *space"]) -> list[Contribution]:
    r"""$J = \sum_t g_t (x_t, 1)^\top$ over all windows $x_t$ of the padded input."""
    module = call.module
    g = gradient.flatten(3)  # [C, N, O, T]
    weight = call.parameters.get("weight")
    bias = call.parameters.get("bias")
    bias_alone = [] if bias is None else [DenseJacobian((bias,), g.sum(3))]
    if weight is None:
        return [*bias_alone]
    groups = module.groups
    layout = _windows(module, weight, ones=bias is not None and groups == 1)
    inputs = _padded(module, call.inputs, layout)
    if groups == 1:
        return [
            OuterProductFactors((weight,) if bias is None else (weight, bias), inputs, g, layout)
        ]
    values = _grouped(layout.columns(inputs), g, groups, transposed=False)
    return [DenseJacobian((weight,), values), *bias_alone]


@layer_rule(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
def transposed_convolution(
    call: Call, gradient: Float[Tensor, "c n o *space"]
) -> list[Contribution]:
    r"""Return $J = \sum_t x_t\, g_t^\top$, $g_t$ the output window of input position t."""
    module = call.module
    c, n, o, *space = gradient.shape
    weight = call.parameters.get("weight")
    bias = call.parameters.get("bias")
    if bias is None:
        bias_alone = []
    else:
        bias_alone = [DenseJacobian((bias,), gradient.flatten(3).sum(3))]
    if weight is None:
        return [*bias_alone]
    # The transpose of a convolution: input position t adds x_t W to the output's window t, so that inputs and
    # derivatives change roles. The windows are those of the derivatives, padded as the convolution would pad.
    layout = _windows(module, weight, ones=False)
    paddings = per_dimension(module.padding, len(space))
    widths = [width for padding in reversed(paddings) for width in (padding, padding)]
    windows = layout.columns(F.pad(gradient.flatten(0, 1), widths)).view(
        c, n, o * math.prod(layout.kernel_size), -1
    )
    # output_padding may add windows after those of the inputs, along every dimension: they are cut off.
    counts = layout.n_windows(tuple(s + 2 * p for s, p in zip(space, paddings, strict=True)))
    windows = windows.unflatten(3, counts)[
        (..., *(slice(size) for size in call.inputs.shape[2:]))
    ].flatten(3)
    columns = call.inputs.flatten(2)
    if module.groups == 1:
        return [
            OuterProductFactors(
                (weight,), columns, windows, PrecomputedColumns(ones=False), transposed=True
            ),
            *bias_alone,
        ]
    return [
        DenseJacobian((weight,), _grouped(columns, windows, module.groups, transposed=True)),
        *bias_alone,
    ]


def _scale_and_shift(
    call: Call,
    gradient: Float[Tensor, "c n *output"],
    normalized: Callable[[], Tensor],
    feature_dims: list[int],
) -> list[Contribution]:
    """Sum g * normalized input (scale) and g (shift) over all but `feature_dims`."""
    # y = w h + b, with h the normalized input, has dy/dw = h and dy/db = 1 per feature
    contributions: list[Contribution] = []
    summed = [dim for dim in range(2, gradient.ndim) if dim not in feature_dims]
    for name, parameter in call.parameters.items():
        values = gradient * normalized() if name == "weight" else gradient
        values = values.sum(summed) if summed else values
        contributions.append(DenseJacobian((parameter,), values.flatten(2)))
    return contributions


@layer_rule(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, Normalizing)
def batch_norm(call: Call, gradient: Float[Tensor, "c n channels *space"]) -> list[Contribution]:
    """BatchNorm with running statistics, or with constant batch statistics."""
    module = call.module

    def normalized() -> Tensor:
        if isinstance(module, Normalizing):
            mean, scale = module.normalization(call.inputs)
            return (call.inputs - mean) * scale
        if uses_batch_statistics(module):
            return F.batch_norm(call.inputs, None, None, training=True, eps=module.eps)
        # gradient has the dimensions [C, N, channels, *space]: statistics are broadcast over the N inputs and space
        shape = (-1,) + (1,) * (gradient.ndim - 3)
        scale = torch.rsqrt(module.running_var + module.eps).view(shape)
        return (call.inputs - module.running_mean.view(shape)) * scale

    return _scale_and_shift(call, gradient, normalized, feature_dims=[2])


@layer_rule(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
def instance_norm(call: Call, gradient: Float[Tensor, "c n channels *space"]) -> list[Contribution]:
    """InstanceNorm with each sample's statistics, or running statistics in evaluation mode."""
    module = call.module
    running = module.track_running_stats and not module.training

    def normalized() -> Tensor:
        if running:
            return F.instance_norm(
                call.inputs,
                module.running_mean,
                module.running_var,
                use_input_stats=False,
                eps=module.eps,
            )
        return F.instance_norm(call.inputs, eps=module.eps)

    return _scale_and_shift(call, gradient, normalized, feature_dims=[2])


@layer_rule(nn.GroupNorm)
def group_norm(call: Call, gradient: Float[Tensor, "c n channels *space"]) -> list[Contribution]:
    """GroupNorm."""
    module = call.module
    return _scale_and_shift(
        call,
        gradient,
        lambda: F.group_norm(call.inputs, module.num_groups, eps=module.eps),
        feature_dims=[2],
    )


@layer_rule(nn.LayerNorm, nn.RMSNorm, features_last=True)
def norm_of_last_dimensions(
    call: Call, gradient: Float[Tensor, "c n *output"]
) -> list[Contribution]:
    """LayerNorm or RMSNorm."""
    module = call.module
    if isinstance(module, nn.LayerNorm):
        normalize = F.layer_norm
    else:
        normalize = F.rms_norm
    feature_dims = list(range(gradient.ndim - len(module.normalized_shape), gradient.ndim))
    return _scale_and_shift(
        call,
        gradient,
        lambda: normalize(call.inputs, module.normalized_shape, eps=module.eps),
        feature_dims,
    )


Projection = Callable[..., Tensor]
"""`project(x, weight, bias[, rows])`: x @ weight[rows].T + bias[rows] as a recorded linear map (of all rows)."""


def can_be_unfolded(module: nn.MultiheadAttention) -> bool:
    """Return whether `attention` equals the module (one packed weight, no extra keys)."""
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
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(
        mask, float("-inf")
    )


def _split_heads(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)  # [n, heads, positions, size]


def attention(
    module: nn.MultiheadAttention, project: Projection
) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Return a forward function for `module` that computes all projections by `project`."""
    original = module.forward
    e = module.embed_dim
    heads = module.num_heads

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
                query,
                key,
                value,
                key_padding_mask,
                need_weights,
                attn_mask,
                average_attn_weights,
                is_causal,
            )
        is_self_attention = query is key and key is value
        if not module.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        weight = module.in_proj_weight
        bias = module.in_proj_bias
        assert weight is not None
        if is_self_attention:
            projected = project(query, weight, bias).split(e, dim=-1)
        else:
            parts = (slice(0, e), slice(e, 2 * e), slice(2 * e, 3 * e))
            projected = [
                project(x, weight, bias, rows)
                for x, rows in zip((query, key, value), parts, strict=True)
            ]
        # softmax(q k^T / sqrt(d)) v per head, with d = e / heads: [n, heads, queries, d] @ [n, heads, d, keys]
        q, k, v = (_split_heads(x, heads) for x in projected)
        scores = (q * (e // heads) ** -0.5) @ k.mT
        if attn_mask is not None:
            mask = _additive(attn_mask, scores.dtype)
            scores = scores + (mask.view(-1, heads, *mask.shape[1:]) if mask.ndim == 3 else mask)
        if key_padding_mask is not None:
            scores = scores + _additive(key_padding_mask, scores.dtype)[:, None, None, :]
        attended = F.dropout(scores.softmax(-1), module.dropout, module.training)
        heads_joined = (attended @ v).transpose(1, 2).flatten(2)  # [n, queries, e]
        outputs = project(heads_joined, module.out_proj.weight, module.out_proj.bias)
        outputs = outputs if module.batch_first else outputs.transpose(0, 1)
        if not need_weights:
            return outputs, None
        return outputs, attended.mean(1) if average_attn_weights else attended

    return forward
