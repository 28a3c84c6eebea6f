"""Mean-only batch normalisation: the batch mean is subtracted, nothing is divided."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from gapscope.batch_norm.layers._channel_norm import ChannelNorm, over_channels, per_channel

_backward = torch.ops.aten.native_batch_norm_backward


class _SubtractBatchMean(torch.autograd.Function):
    """gamma * (h - mean) + beta, where `mean` is the batch mean of h and the gradient runs through it."""

    @staticmethod
    def forward(h: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor) -> Tensor:
        return F.batch_norm(h, mean, torch.ones_like(mean), weight, bias, False, 0.0, 0.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        h, weight, bias, mean = inputs
        ctx.has_bias = bias is not None
        ctx.save_for_backward(h, weight, mean)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = gradients
        h, weight, mean = ctx.saved_tensors
        over = over_channels(h)
        if torch.is_grad_enabled():
            centred = h - h.mean(over, keepdim=True)
            to_h = g - g.mean(over, keepdim=True)
            to_h = to_h if weight is None else per_channel(weight, h) * to_h
            to_weight, to_bias = (g * centred).sum(over), g.sum(over)
        else:
            ones = torch.ones_like(mean)
            scale = ones if weight is None else weight
            to_h, to_weight, to_bias = _backward(g, h, scale, mean, ones, None, None, False, 0.0, [True] * 3)
            mean_gradient = scale * to_bias / (h.numel() // h.shape[1])
            to_h = to_h.sub_(per_channel(mean_gradient, h).to(to_h.dtype))
        return to_h, None if weight is None else to_weight, to_bias if ctx.has_bias else None, None


class MeanOnlyBatchNorm(ChannelNorm):
    r"""Subtracts the batch mean and divides by nothing: $y = \gamma (h - \mu_B) + \beta$; the running mean in eval.

    Meant for weight-normalised layers, whose length g takes the place of gamma: then use `scale=False`.
    A channel that is constant over the batch becomes beta. `running_var` does not exist, so a BatchNorm's state
    dictionary, which stands for another function, is refused by `load_state_dict`; use `replace`.

    Reference: Salimans and Kingma 2016, section 3, eq. 7-8; Luo et al. 2019, section 5 ("WN+mean-only BN").

    Args:
        num_features: Number of channels.
        momentum: Weight of the newest batch in the running mean; None for the plain average.
        affine: Whether there are gamma and beta.
        scale: Whether there is gamma (only where `affine`).
        track_running_stats: Whether the running mean is kept for evaluation.
        device: Device of parameters and buffers.
        dtype: Floating-point type of parameters and buffers.

    >>> MeanOnlyBatchNorm1d(1)(torch.tensor([[1.0], [5.0]])).flatten().tolist()
    [-2.0, 2.0]
    """

    def __init__(
        self,
        num_features: int,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        scale: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_features, 0.0, momentum, affine, track_running_stats, device=device, dtype=dtype)
        self.running_var = None
        if not scale:
            self.weight = None

    def extra_repr(self) -> str:
        """Settings that the layer has."""
        return (
            f"{self.num_features}, momentum={self.momentum}, affine={self.affine}, scale={self.weight is not None}, "
            f"track_running_stats={self.track_running_stats}"
        )

    def forward(self, h: Float[Tensor, "n c *positions"]) -> Float[Tensor, "n c *positions"]:
        """Normalise a batch.

        Args:
            h: Batch of pre-activations.

        Returns:
            The normalised batch, in the type of `h`.

        Raises:
            InvalidInput: The shape does not fit, or a channel has a single value in the batch.
        """
        self._check_shape(h)
        if not self.uses_batch_statistics:
            assert self.running_mean is not None
            ones = torch.ones_like(self.running_mean)
            return F.batch_norm(h, self.running_mean, ones, self.weight, self.bias, False, 0.0, 0.0)
        self._check_batch(h)
        reference = next((t for t in (self.running_mean, self.bias) if t is not None), h)
        mean = h.detach().mean(over_channels(h), dtype=reference.dtype)
        if self.training:
            self._track(mean, None)
        return _SubtractBatchMean.apply(h, self.weight, self.bias, mean)


class MeanOnlyBatchNorm1d(MeanOnlyBatchNorm):
    """MeanOnlyBatchNorm of [n, C] or [n, C, length]."""

    _dimensions: ClassVar[tuple[int, ...]] = (2, 3)


class MeanOnlyBatchNorm2d(MeanOnlyBatchNorm):
    """MeanOnlyBatchNorm of [n, C, height, width]."""

    _dimensions: ClassVar[tuple[int, ...]] = (4,)


class MeanOnlyBatchNorm3d(MeanOnlyBatchNorm):
    """MeanOnlyBatchNorm of [n, C, depth, height, width]."""

    _dimensions: ClassVar[tuple[int, ...]] = (5,)
