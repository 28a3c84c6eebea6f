"""Convolutions and transposed convolutions in one, two and three dimensions."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from gapscope.gradients.contributions import Contribution, DenseJacobian, OuterProductFactors
from gapscope.gradients.layer_rules import Call, layer_rule
from gapscope.gradients.layouts import Columns, Windows


def _padded(module: Any, inputs: Tensor) -> Tensor:
    """Pad as the layer does: by numbers or "same", and in its padding mode."""
    widths = module._reversed_padding_repeated_twice
    if not any(widths):
        return inputs
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    return F.pad(inputs, widths, mode=mode)


def _grouped(
    columns: Float[Tensor, "n gk t"], gradients: Float[Tensor, "c n go t"], groups: int, *, transposed: bool
) -> Float[Tensor, "c n p"]:
    """Jacobian of a grouped weight: group j joins block j of the columns with block j of the derivatives."""
    (n, _, t), c = columns.shape, gradients.shape[0]
    columns = columns.reshape(n, groups, -1, t)
    gradients = gradients.reshape(c, n, groups, -1, t).permute(1, 2, 0, 3, 4)
    jacobian = torch.matmul(gradients.flatten(2, 3), columns.mT).unflatten(2, (c, -1))  # (n, groups, c, o, k)
    jacobian = jacobian.mT if transposed else jacobian
    return jacobian.permute(2, 0, 1, 3, 4).flatten(2)


@layer_rule(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def convolution(call: Call, gradient: Float[Tensor, "c n o *space"]) -> list[Contribution]:
    r"""$J = \sum_t g_t (x_t, 1)^\top$ over all windows $x_t$ of the padded input."""
    module = call.module
    places = gradient.flatten(3)
    weight, bias = call.parameters.get("weight"), call.parameters.get("bias")
    bias_alone = [] if bias is None else [DenseJacobian((bias,), places.sum(3))]
    if weight is None:
        return [*bias_alone]
    inputs, groups = _padded(module, call.inputs), module.groups
    layout = Windows(bias is not None and groups == 1, module.kernel_size, module.stride, module.dilation)
    if groups == 1:
        return [OuterProductFactors((weight,) if bias is None else (weight, bias), inputs, places, layout)]
    values = _grouped(layout.columns(inputs), places, groups, transposed=False)
    return [DenseJacobian((weight,), values), *bias_alone]


@layer_rule(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
def transposed_convolution(call: Call, gradient: Float[Tensor, "c n o *space"]) -> list[Contribution]:
    r"""$J = \sum_t x_t\, g_t^\top$ with $g_t$ the window of the output to which input position t contributes."""
    module = call.module
    c, n, o, *space = gradient.shape
    weight, bias = call.parameters.get("weight"), call.parameters.get("bias")
    bias_alone = [] if bias is None else [DenseJacobian((bias,), gradient.flatten(3).sum(3))]
    if weight is None:
        return [*bias_alone]
    layout = Windows(False, module.kernel_size, module.stride, module.dilation)
    widths = [width for padding in reversed(module.padding) for width in (padding, padding)]
    # Rows that only output_padding adds, or that the stride never reaches, hold no window and drop out by themselves.
    windows = layout.columns(F.pad(gradient.flatten(0, 1), widths))
    inputs = call.inputs
    windows = windows.view(c, n, o * math.prod(module.kernel_size), -1)
    reached = layout.places(tuple(s + 2 * p for s, p in zip(space, module.padding, strict=True)))
    positions = inputs.shape[2:]
    windows = windows.unflatten(3, reached)[(..., *(slice(size) for size in positions))].flatten(3)
    columns = inputs.flatten(2)
    if module.groups == 1:
        return [OuterProductFactors((weight,), columns, windows, Columns(ones=False), transposed=True), *bias_alone]
    return [DenseJacobian((weight,), _grouped(columns, windows, module.groups, transposed=True)), *bias_alone]
