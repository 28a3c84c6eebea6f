"""Variance-only batch normalisation: divided by the batch standard deviation, nothing is subtracted."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from gapscope.batch_norm.layers._channel_norm import ChannelNorm, batch_mean_and_variance, over_channels, per_channel

_backward = torch.ops.aten.native_batch_norm_backward


class _DivideByBatchDeviation(torch.autograd.Function):
    """gamma * h / sigma + beta, sigma^2 = mean((h - centre)^2) + eps over the batch, gradient through sigma.

    `centre` is the batch mean, or None for 0 (root mean square).
    """

    @staticmethod
    def forward(
        h: Tensor, weight: Tensor | None, bias: Tensor | None, centre: Tensor | None, variance: Tensor, eps: float
    ) -> Tensor:
        return F.batch_norm(h, torch.zeros_like(variance), variance, weight, bias, False, 0.0, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        h, weight, _, centre, variance, ctx.eps = inputs
        ctx.save_for_backward(h, weight, centre, variance)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = gradients
        h, weight, centre, variance = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *_differentiable_gradient(g, h, weight, centre is not None, ctx.eps), *[None] * 3
        inverse = (variance + ctx.eps).rsqrt()
        scale = torch.ones_like(inverse) if weight is None else weight
        # With a saved mean of 0, batch norm's backward is scale/sigma * (g - mean g - h/sigma * mean(g h/sigma)).
        # The gradient wanted is scale/sigma * (g - (h - centre)/sigma * mean(g h/sigma)): they differ by a constant.
        to_h, to_weight, to_bias = _backward(
            g, h, scale, None, None, torch.zeros_like(inverse), inverse, True, ctx.eps, [True] * 3
        )
        missing = to_bias if centre is None else to_bias + centre * inverse * to_weight
        missing = scale * inverse * missing / (h.numel() // h.shape[1])
        to_h = to_h.add_(per_channel(missing, h).to(to_h.dtype))
        return (to_h, *[None] * 5) if weight is None else (to_h, to_weight, to_bias, *[None] * 3)


def _differentiable_gradient(
    g: Tensor, h: Tensor, weight: Tensor | None, centred: bool, eps: float
) -> tuple[Tensor | None, ...]:
    over = over_channels(h)
    deviation = h - h.mean(over, keepdim=True) if centred else h
    inverse = (deviation.square().mean(over, keepdim=True) + eps).rsqrt()
    to_h = inverse * (g - inverse.square() * deviation * (g * h).mean(over, keepdim=True))
    if weight is None:
        return to_h, None, None
    return per_channel(weight, h) * to_h, (g * h * inverse).sum(over), g.sum(over)


class VarianceOnlyBatchNorm(ChannelNorm):
    r"""Divides by the batch standard deviation and subtracts nothing: $y = \gamma h / \sigma_B + \beta$.

    $\sigma_B^2 = \frac1m \sum (h - \mu_B)^2 + \epsilon$ about the batch mean (the paper gives no formula; this is our
    reading), or $\frac1m \sum h^2 + \epsilon$ with `rms`. In evaluation the running variance (with `rms`: the running
    mean square) takes its place. A channel that is constant over the batch is divided by sqrt(eps), so its outputs
    are large (unless it is 0): prefer `rms` where channels can die. `running_mean` does not exist, so a BatchNorm's
    state dictionary, which stands for another function, is refused by `load_state_dict`; use `replace`.

    Reference: Luo et al. 2019, section 5 ("WN+variance-only BN").

    Args:
        num_features: Number of channels.
        eps: Added to the variance.
        momentum: Weight of the newest batch in the running variance; None for the plain average.
        affine: Whether there are gamma and beta.
        track_running_stats: Whether the running variance is kept for evaluation.
        rms: Whether deviations are from 0 rather than from the batch mean.
        device: Device of parameters and buffers.
        dtype: Floating-point type of parameters and buffers.

    >>> VarianceOnlyBatchNorm1d(1, eps=0.0)(torch.tensor([[1.0], [5.0]])).flatten().tolist()
    [0.5, 2.5]
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        rms: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype)
        self.running_mean = None
        self.rms = rms

    def extra_repr(self) -> str:
        """Settings that the layer has."""
        return f"{super().extra_repr()}, rms={self.rms}"

    def _batch_statistics(self, h: Tensor) -> tuple[Tensor | None, Tensor]:
        reference = next((t for t in (self.running_var, self.weight) if t is not None), h)
        mean, variance = batch_mean_and_variance(h, reference.dtype)
        return (None, variance + mean.square()) if self.rms else (mean, variance)

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
            assert self.running_var is not None
            zeros = torch.zeros_like(self.running_var)
            return F.batch_norm(h, zeros, self.running_var, self.weight, self.bias, False, 0.0, self.eps)
        self._check_batch(h)
        centre, variance = self._batch_statistics(h)
        if self.training:
            n_values = h.numel() // h.shape[1]
            unbiased = variance if self.rms else variance * (n_values / (n_values - 1))
            self._track(None, unbiased)
        return _DivideByBatchDeviation.apply(h, self.weight, self.bias, centre, variance, self.eps)


class VarianceOnlyBatchNorm1d(VarianceOnlyBatchNorm):
    """VarianceOnlyBatchNorm of [n, C] or [n, C, length]."""

    _dimensions: ClassVar[tuple[int, ...]] = (2, 3)


class VarianceOnlyBatchNorm2d(VarianceOnlyBatchNorm):
    """VarianceOnlyBatchNorm of [n, C, height, width]."""

    _dimensions: ClassVar[tuple[int, ...]] = (4,)


class VarianceOnlyBatchNorm3d(VarianceOnlyBatchNorm):
    """VarianceOnlyBatchNorm of [n, C, depth, height, width]."""

    _dimensions: ClassVar[tuple[int, ...]] = (5,)
