r"""Log determinant of a batch's kernel, with its exact gradient.

With $M = K^{-1}$ constant, $d \log\det K = \mathrm{tr}(M\, dK) = \langle M, dK \rangle$. K is the sum of one block
$K_\ell$ per weight, so each weight's part of the gradient is that of $\langle M, K_\ell \rangle$. It follows from the
weight's factors (`Contribution.kernel_gradient`), without differentiating the Cholesky factorization.

With noise s, $\log\det(I + K/s)$ has the differential $\mathrm{tr}((I + K/s)^{-1} dK/s)$, so $M = (I + K/s)^{-1}/s$.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from gapscope.base.errors import NotMeasurable
from gapscope.gradients.contributions import Contribution


def _factorized(kernel: Tensor, noise: float | None) -> Tensor:
    """Cholesky factor of K, or I + K / noise, in float64."""
    precision = len(kernel) * torch.finfo(kernel.dtype).eps
    matrix = kernel.double()
    if noise is not None:
        matrix = matrix / noise
        matrix.diagonal().add_(1)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    rounding = precision * float(kernel.diagonal().max())
    if not math.isfinite(rounding):
        return torch.full_like(matrix, math.nan)  # a network that has diverged
    if noise is None and (failed or factor.diagonal().min().square() <= rounding):
        raise NotMeasurable(
            f"log det K must be finite; the kernel of this batch ({len(kernel)} rows) is singular to working "
            "precision (duplicated samples, dead layers, or more rows than weights). "
            "Use log det(I + K / s) instead: noise=1.0."
        )
    if failed:
        raise NotMeasurable(
            f"noise must be larger than the rounding errors of K, about {rounding:.1g}; got {noise:g}. "
            "Raise it, or use a network in float64."
        )
    return factor


class _LogDeterminant(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx, parts: Sequence[Contribution], noise: float | None, *sources: Tensor
    ) -> Tensor:
        kernel = torch.stack([part.kernel(part) for part in parts]).sum(0)
        factor = _factorized(kernel.flatten(0, 1).flatten(1), noise)
        # M = K^-1, or (I + K/s)^-1 / s: the derivative of the log determinant by K
        inverse = torch.cholesky_inverse(factor) / (1 if noise is None else noise)
        ctx.parts = parts
        ctx.save_for_backward(inverse.view_as(kernel).to(kernel.dtype))
        return 2 * factor.diagonal().log().sum()  # det K = (prod_i L_ii)^2

    @staticmethod
    @once_differentiable
    def backward(ctx, weight: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        (inverse,) = ctx.saved_tensors
        # K is the sum of the kernels K_l of the contributions: each returns d<M, K_l> by its own stored tensors
        inverse = inverse * weight.to(inverse.dtype)
        return None, None, *(gradient for part in ctx.parts for gradient in part.kernel_gradient(inverse))


def log_determinant(parts: Sequence[Contribution], noise: float | None) -> Float[Tensor, ""]:
    r"""Return $\log\det(I + K/s)$, or without noise $\log\det K$, in float64.

    Raises:
        NotMeasurable: K is singular.
    """
    sources = [source for part in parts for source in part.sources()]
    value: Any = _LogDeterminant.apply(parts, noise, *sources)
    return value
