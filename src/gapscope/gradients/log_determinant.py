r"""Log determinant of the kernel of a recorded batch, with its exact gradient and a fixed inverse in the backward.

$d \log\det K = \mathrm{tr}(K^{-1}\, dK)$: with $M = K^{-1}$ held fixed, each layer's fraction of the gradient is that
of $\langle M, K_\ell \rangle$, taken from its factors without differentiating through the factorization.
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
        inverse = torch.cholesky_inverse(factor) / (1 if noise is None else noise)
        ctx.parts = parts
        ctx.save_for_backward(inverse.view_as(kernel).to(kernel.dtype))
        return 2 * factor.diagonal().log().sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, weight: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        (inverse,) = ctx.saved_tensors
        inverse = inverse * weight.to(inverse.dtype)
        return None, None, *(gradient for part in ctx.parts for gradient in part.kernel_gradient(inverse))


def log_determinant(parts: Sequence[Contribution], noise: float | None) -> Float[Tensor, ""]:
    r"""$\log\det(I + K/s)$, or $\log\det K$ where `noise` is None, of the kernel of all outputs; differentiable once.

    Args:
        parts: Contributions of all parameters, differentiable.
        noise: s.

    Returns:
        The log determinant, float64.

    Raises:
        NotMeasurable: K is singular.
    """
    sources = [source for part in parts for source in part.sources()]
    value: Any = _LogDeterminant.apply(parts, noise, *sources)
    return value
