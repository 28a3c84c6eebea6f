r"""Squared norms of one weight's per-sample Jacobian, differentiable, without keeping what was unfolded.

$\lVert J_n \rVert^2 = \sum_c \lVert \sum_t g_{cnt} a_{nt}^\top \rVert_F^2$, either from J itself or, where T is small,
from $\sum_{ts} (a_{nt} \cdot a_{ns}) \sum_c (g_{cnt} \cdot g_{cns})$.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from gapscope.gradients.contractions import TEMPORARY
from gapscope.gradients.layouts import Layout
from gapscope.samples import slices


class _SquareNorms(torch.autograd.Function):
    """[N] from inputs [N, ...] and flattened derivatives [N, C O, T]; its backward recomputes the columns."""

    @staticmethod
    def forward(ctx, inputs: Tensor, gradients: Tensor, layout: Layout) -> Tensor:  # type: ignore[override]
        columns = layout.unfold(inputs)
        (n, k, t), rows = columns.shape, gradients.shape[1]
        ctx.layout, ctx.by_places = layout, t * (k + rows) < rows * k
        if ctx.by_places:
            ctx.save_for_backward(inputs, gradients)
            return (torch.bmm(gradients.mT, gradients) * torch.bmm(columns.mT, columns)).sum((1, 2))
        norms, kept = [], []
        for part in slices(n, max(1, TEMPORARY // (rows * k))):
            jacobian = torch.bmm(gradients[part], columns[part].mT)
            norms.append(torch.linalg.vector_norm(jacobian.flatten(1), dim=1).square())
            if any(ctx.needs_input_grad):
                kept.append(jacobian)
        ctx.save_for_backward(inputs, gradients, *kept)
        return torch.cat(norms)

    @staticmethod
    @once_differentiable
    def backward(ctx, weights: Tensor) -> tuple[Tensor | None, Tensor, None]:  # type: ignore[override]
        inputs, gradients, *kept = ctx.saved_tensors
        columns = ctx.layout.unfold(inputs)
        doubled = (2 * weights)[:, None, None]
        if ctx.by_places:
            by_gradients = torch.bmm(gradients, torch.bmm(columns.mT, columns).mul_(doubled))
        else:
            by_jacobian = torch.cat(kept) * doubled
            by_gradients = torch.bmm(by_jacobian, columns)
        if not ctx.needs_input_grad[0]:
            return None, by_gradients, None
        if ctx.by_places:
            by_columns = torch.bmm(columns, torch.bmm(gradients.mT, gradients).mul_(doubled))
        else:
            by_columns = torch.bmm(by_jacobian.mT, gradients)
        return ctx.layout.fold(by_columns, inputs), by_gradients, None


def jacobian_square_norms(inputs: Tensor, gradients: Float[Tensor, "c n o t"], layout: Layout) -> Float[Tensor, " n"]:
    """Return the squared Frobenius norm of J_n for every sample, summed over outputs; differentiable once.

    Args:
        inputs: Inputs of the layer, as `layout` expects them.
        gradients: Derivatives of the outputs by the layer's output.
        layout: How inputs become columns.

    Returns:
        One number a sample.
    """
    c, n, o, t = gradients.shape
    if t == 1:
        columns = layout.columns(inputs)
        return columns.square().sum((1, 2)) * gradients.square().sum((0, 2, 3))
    result: Any = _SquareNorms.apply(inputs, gradients.transpose(0, 1).reshape(n, c * o, t), layout)
    return result
