r"""Batch with its statistics, differentiable through both.

A layer applies statistics through gamma and beta: if $\mu_0$ and $\sigma_0$ are the statistics as constants,
$$\gamma \frac{h-\mu}{\sigma} + \beta = \gamma' \frac{h-\mu_0}{\sigma_0} + \beta',\quad
\gamma' = \gamma \frac{\sigma_0}{\sigma},\quad \beta' = \beta - \gamma \frac{\mu-\mu_0}{\sigma}.$$
The right side is torch's fused evaluation function of h; $\gamma' = \gamma$ and $\beta' = \beta$ in value, and the
gradient through the statistics flows through these C numbers. All orders of derivatives are torch's own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def per_channel(values: Tensor, like: Tensor) -> Tensor:
    """View [C] as [1, C, 1, ...] so that it broadcasts against `like` [n, C, ...]."""
    return values.view(1, -1, *[1] * (like.ndim - 2))


def over_channels(h: Tensor) -> list[int]:
    """Return the dimensions of [n, C, ...] over which a channel's statistics run."""
    return [0, *range(2, h.ndim)]


# The batch is handed on by detach(), not view_as(h): that would change the stride of a dimension of size 1, by which
# torch distinguishes channels-last from contiguous, and batch norm's backward pass would mix its values up.


class _WithMean(torch.autograd.Function):
    """A batch and its mean [C]."""

    @staticmethod
    def forward(h: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return h.detach(), h.mean(over_channels(h), dtype=dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.n_values = inputs[0].numel() // inputs[0].shape[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        g, to_mean = gradients
        # d mean / dh = 1/m, for m values per channel
        constant = per_channel(to_mean / ctx.n_values, g).to(g.dtype)
        # in place: batch norm's backward pass made g for this layer alone, which gave the batch to nothing else
        return (g + constant if torch.is_grad_enabled() else g.add_(constant)), None


class _WithMeanAndVariance(torch.autograd.Function):
    """A batch, its mean and its biased variance [C]."""

    @staticmethod
    def forward(h: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        # the fused statistics of torch's synchronized batch norm: torch.var_mean resumes to 30 times as long
        unused = h.new_zeros(h.shape[1], dtype=dtype)
        return h.detach(), *torch.batch_norm_update_stats(h, unused, unused.clone(), 0.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(inputs[0], output[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        g, to_mean, to_variance = gradients
        h, mean = ctx.saved_tensors
        n_values = h.numel() // h.shape[1]
        if torch.is_grad_enabled():  # in the next derivative the mean is a function of h
            mean = h.mean(over_channels(h), dtype=mean.dtype)
        # d mean / dh = 1/m and d variance / dh = 2 (h - mean) / m
        slope = 2 * to_variance / n_values
        constant = to_mean / n_values - slope * mean
        slope, constant = (per_channel(values, h).to(h.dtype) for values in (slope, constant))
        if torch.is_grad_enabled():
            return torch.addcmul(g + constant, slope, h), None
        return g.addcmul_(slope, h).add_(constant), None  # in place, as above


def with_mean(h: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return a batch [n, C, ...] and its mean [C], differentiable by `h`.

    Use the returned batch exactly once. Sums run in `dtype` or higher precision.
    """
    return _WithMean.apply(h, dtype)  # type: ignore[return-value]


def with_mean_and_variance(h: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return a batch [n, C, ...], its mean and biased variance [C], differentiable by `h`.

    Use the returned batch exactly once. Sums run in `dtype` or higher precision.
    """
    return _WithMeanAndVariance.apply(h, dtype)  # type: ignore[return-value]
