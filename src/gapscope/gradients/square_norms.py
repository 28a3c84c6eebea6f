r"""Squared norms of one weight's per-sample Jacobian, without unfolded columns.

$\lVert J_n \rVert^2 = \sum_c \lVert \sum_t g_{cnt} a_{nt}^\top \rVert_F^2$, either from J itself or, if T is small,
from $\sum_{ts} (a_{nt} \cdot a_{ns}) \sum_c (g_{cnt} \cdot g_{cns})$.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from gapscope.base.samples import slices
from gapscope.gradients.grouped_convolutions import (
    apply_jacobian,
    apply_transpose,
    is_faster,
    jacobians,
)
from gapscope.gradients.layouts import Layout, Tokens, Windows

# Floats of the columns of one part: few enough to stay in the cache of a processor between their uses.
_PART = {"cpu": 2**18, "cuda": 2**25}


def _parts(
    inputs: Tensor, gradients: Tensor, layout: Layout, k: int
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    n, rows, t = gradients.shape
    for part in slices(n, max(1, _PART.get(inputs.device.type, 2**25) // (k * (t + rows)))):
        yield part, layout.unfold(inputs[part]), gradients[part]


class _SquareNorms(torch.autograd.Function):
    """Squared norms [N], whose backward pass recomputes the columns."""

    @staticmethod
    def forward(ctx, inputs: Tensor, gradients: Tensor, layout: Layout) -> Tensor:  # type: ignore[override]
        n, rows, t = gradients.shape
        k = layout.width(inputs)
        # J = g a^T: |J|^2 = tr(a g^T g a^T) = sum_ts (g^T g)_ts (a^T a)_ts. The Gram matrices [T, T] cost T^2 (K +
        # rows) multiplications, J itself T K rows.
        ctx.layout = layout
        ctx.k = k
        ctx.by_gram = t * (k + rows) < rows * k
        norms = inputs.new_empty(n)
        jacobians = []
        for part, columns, g in _parts(inputs, gradients, layout, k):
            if ctx.by_gram:
                norms[part] = (torch.bmm(g.mT, g) * torch.bmm(columns.mT, columns)).sum((1, 2))
                continue
            jacobian = torch.bmm(g, columns.mT)
            norms[part] = torch.linalg.vector_norm(jacobian.flatten(1), dim=1).square()
            if any(ctx.needs_input_grad):
                jacobians.append(jacobian)
        ctx.save_for_backward(inputs, gradients, *jacobians)
        return norms

    @staticmethod
    @once_differentiable
    def backward(ctx, weights: Tensor) -> tuple[Tensor | None, Tensor, None]:  # type: ignore[override]
        inputs, gradients, *jacobians = ctx.saved_tensors
        # J = g a^T: d(w |J|^2) = 2 w <J, dg a^T + g da^T>, so that the derivatives are 2 w J a by g and 2 w J^T g by a.
        # By Gram matrices these are 2 w g (a^T a) and 2 w a (g^T g).
        doubled = (2 * weights)[:, None, None]
        if ctx.needs_input_grad[0]:
            by_inputs = torch.empty_like(inputs)
        else:
            by_inputs = None
        by_gradients = torch.empty_like(gradients)
        saved_jacobians = iter(jacobians)
        for part, columns, g in _parts(inputs, gradients, ctx.layout, ctx.k):
            if ctx.by_gram:
                torch.bmm(
                    g, torch.bmm(columns.mT, columns).mul_(doubled[part]), out=by_gradients[part]
                )
            else:
                jacobian = next(saved_jacobians) * doubled[part]
                torch.bmm(jacobian, columns, out=by_gradients[part])
            if by_inputs is not None:
                if ctx.by_gram:
                    by_columns = torch.bmm(columns, torch.bmm(g.mT, g).mul_(doubled[part]))
                else:
                    by_columns = torch.bmm(jacobian.mT, g)
                by_inputs[part] = ctx.layout.fold(by_columns, inputs[part])
        return by_inputs, by_gradients, None


class _SquareNormsByGroups(torch.autograd.Function):
    """`_SquareNorms` for windows, by convolutions with as many groups as samples."""

    @staticmethod
    def forward(ctx, inputs: Tensor, gradients: Tensor, layout: Windows) -> Tensor:  # type: ignore[override]
        jacobian = jacobians(inputs, gradients, layout)
        sums = gradients.sum(2)
        ctx.layout = layout
        ctx.save_for_backward(inputs, gradients, jacobian)
        # |(J_W, J_b)|^2 = |J_W|^2 + |J_b|^2, and the column of the bias is J_b = sum_t g_t
        norms = jacobian.square().sum((1, 2))
        return norms + sums.square().sum(1) if layout.ones else norms

    @staticmethod
    @once_differentiable
    def backward(ctx, weights: Tensor) -> tuple[Tensor | None, Tensor, None]:  # type: ignore[override]
        inputs, gradients, jacobian = ctx.saved_tensors
        doubled = (2 * weights)[:, None, None]
        jacobian = jacobian * doubled
        by_gradients = apply_jacobian(jacobian, inputs, ctx.layout)
        if ctx.layout.ones:  # d(w |sum_s g_s|^2) / dg_t = 2 w sum_s g_s for every t
            by_gradients += doubled * gradients.sum(2, keepdim=True)
        if ctx.needs_input_grad[0]:
            by_inputs = apply_transpose(jacobian, gradients, inputs, ctx.layout)
        else:
            by_inputs = None
        return by_inputs, by_gradients, None


class _RankOneSquareNorms(torch.autograd.Function):
    r"""Squared norms $(\lvert a_n \rvert^2 + b) \sum_c \lvert g_{cn} \rvert^2$ of one position, b for the bias."""

    @staticmethod
    def forward(ctx, inputs: Tensor, gradients: Tensor, ones: bool) -> Tensor:  # type: ignore[override]
        of_inputs = torch.linalg.vector_norm(inputs, dim=1).square() + ones
        of_gradients = torch.linalg.vector_norm(gradients, dim=2).square().sum(0)
        ctx.save_for_backward(inputs, gradients, of_inputs, of_gradients)
        return of_inputs * of_gradients

    @staticmethod
    @once_differentiable
    def backward(ctx, weights: Tensor) -> tuple[Tensor | None, Tensor | None, None]:  # type: ignore[override]
        inputs, gradients, of_inputs, of_gradients = ctx.saved_tensors
        by_inputs = by_gradients = None
        if ctx.needs_input_grad[0]:
            by_inputs = (2 * weights * of_gradients)[:, None] * inputs
        if ctx.needs_input_grad[1]:
            by_gradients = (2 * weights * of_inputs)[:, None] * gradients
        return by_inputs, by_gradients, None


def jacobian_square_norms(
    inputs: Tensor, gradients: Float[Tensor, "c n o t"], layout: Layout
) -> Float[Tensor, " n"]:
    """Return the squared Frobenius norm of J_n per sample, summed over outputs."""
    c, n, o, t = gradients.shape
    if t == 1:  # |g a^T|^2 = |g|^2 |a|^2
        if isinstance(layout, Tokens):
            rank_one: Any = _RankOneSquareNorms.apply(
                inputs.flatten(1), gradients.squeeze(3), layout.ones
            )
            return rank_one
        return layout.columns(inputs).square().sum((1, 2)) * gradients.square().sum((0, 2, 3))
    by_jacobian = t * (layout.width(inputs) + c * o) >= c * o * layout.width(inputs)
    if by_jacobian and is_faster(inputs, layout, t):
        function = _SquareNormsByGroups
    else:
        function = _SquareNorms
    result: Any = function.apply(inputs, gradients.transpose(0, 1).reshape(n, c * o, t), layout)
    return result
