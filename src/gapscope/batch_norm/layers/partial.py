"""Batch normalization by the mean alone or by the standard deviation alone."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from gapscope.batch_norm.layers._channel_norm import (
    ChannelNorm,
    over_channels,
    with_mean,
    with_mean_and_variance,
)
from gapscope.gradients.frozen_batch_stats import broadcast_statistics


class MeanOnlyBatchNorm(ChannelNorm):
    r"""Subtraction of the batch mean without division: $y = \gamma (h - \mu_B) + \beta$.

    Evaluation uses the running mean. Use `scale=False` for weight-normalized layers, whose length g replaces gamma.
    There is no `running_var`. Loading a BatchNorm's state dictionary, which describes another function, raises an
    error: use `replace_batch_norm`.

    Reference: Salimans and Kingma 2016, section 3, eq. 7-8; Luo et al. 2019, section 5 ("WN+mean-only BN").

    Args:
        num_features: Number of channels C.
        momentum: Weight of the newest batch in the running statistics, in [0, 1]; None for the plain average of all
            batches.
        affine: Whether the layer has gamma and beta, one number per channel each.
        track_running_stats: Whether running statistics are tracked for evaluation; without them, evaluation uses those
            of the batch.
        scale: Whether the layer has gamma (only if `affine`).
        device: Device of the parameters and buffers; None for torch's default.
        dtype: Their floating-point type; None for torch's default.

    >>> MeanOnlyBatchNorm1d(1)(torch.tensor([[1.0], [5.0]])).flatten().tolist()
    [-2.0, 2.0]
    """

    _shown = ("momentum", "affine", "track_running_stats", "scale")

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
        super().__init__(
            num_features, 0.0, momentum, affine, track_running_stats, device=device, dtype=dtype
        )
        self.running_var = None
        self.scale = affine and scale
        if not scale:
            self.weight = None

    def _batch_normalization(self, h: Tensor) -> tuple[Tensor, Tensor]:
        mean = h.mean(over_channels(h), keepdim=True)
        return mean, torch.ones_like(mean)

    def _normalize_by_batch(self, h: Tensor) -> Tensor:
        self._check_batch(h)
        reference = next((t for t in (self.running_mean, self.bias) if t is not None), h)
        h, mean = with_mean(h, reference.dtype)
        centre = mean.detach()
        if self.training:
            self._track(centre, None)
        ones = torch.ones_like(centre)
        # without weight, torch loses second derivatives
        weight = ones if self.weight is None else self.weight
        shift = weight * (centre - mean)  # zeros, with the gradient of the mean
        bias = shift if self.bias is None else self.bias + shift
        return F.batch_norm(h, centre, ones, weight, bias, False, 0.0, 0.0)


class MeanOnlyBatchNorm1d(MeanOnlyBatchNorm, dimensions=1):
    """MeanOnlyBatchNorm of [n, C] or [n, C, length].

    Args:
        num_features: Number of channels C.
        momentum: Weight of the newest batch in the running statistics, in [0, 1]; None for the plain average of all
            batches.
        affine: Whether the layer has gamma and beta, one number per channel each.
        track_running_stats: Whether running statistics are tracked for evaluation; without them, evaluation uses those
            of the batch.
        scale: Whether the layer has gamma (only if `affine`).
        device: Device of the parameters and buffers; None for torch's default.
        dtype: Their floating-point type; None for torch's default.
    """


class MeanOnlyBatchNorm2d(MeanOnlyBatchNorm, dimensions=2):
    """MeanOnlyBatchNorm of [n, C, height, width].

    Args:
        num_features: Number of channels C.
        momentum: Weight of the newest batch in the running statistics, in [0, 1]; None for the plain average of all
            batches.
        affine: Whether the layer has gamma and beta, one number per channel each.
        track_running_stats: Whether running statistics are tracked for evaluation; without them, evaluation uses those
            of the batch.
        scale: Whether the layer has gamma (only if `affine`).
        device: Device of the parameters and buffers; None for torch's default.
        dtype: Their floating-point type; None for torch's default.
    """


class MeanOnlyBatchNorm3d(MeanOnlyBatchNorm, dimensions=3):
    """MeanOnlyBatchNorm of [n, C, depth, height, width].

    Args:
        num_features: Number of channels C.
        momentum: Weight of the newest batch in the running statistics, in [0, 1]; None for the plain average of all
            batches.
        affine: Whether the layer has gamma and beta, one number per channel each.
        track_running_stats: Whether running statistics are tracked for evaluation; without them, evaluation uses those
            of the batch.
        scale: Whether the layer has gamma (only if `affine`).
        device: Device of the parameters and buffers; None for torch's default.
        dtype: Their floating-point type; None for torch's default.
    """


class VarianceOnlyBatchNorm(ChannelNorm):
    r"""Division by the batch standard deviation alone: $y = \gamma h / \sigma_B + \beta$.

    $\sigma_B^2 = \frac1m \sum (h - \mu_B)^2 + \epsilon$ about the batch mean (the paper states no formula; this is our
    interpretation), or $\frac1m \sum h^2 + \epsilon$ with `rms`. Evaluation uses the running variance (with `rms`: the
    running mean square). A channel that is constant over the batch is divided by sqrt(eps), so that its outputs are
    large (unless it is 0): prefer `rms` if channels can die. There is no `running_mean`.

    Reference: Luo et al. 2019, section 5 ("WN+variance-only BN").

    Args:
        num_features: Number of channels C.
        eps: Added to variances inside the square root, 0 or larger.
        momentum: Weight of the newest batch in the running statistics, in [0, 1]; None for the plain average of all
            batches.
        affine: Whether the layer has gamma and beta, one number per channel each.
        track_running_stats: Whether running statistics are tracked for evaluation; without them, evaluation uses those
            of the batch.
        rms: Whether deviations are from 0 rather than from the batch mean.
        device: Device of the parameters and buffers; None for torch's default.
        dtype: Their floating-point type; None for torch's default.

    >>> VarianceOnlyBatchNorm1d(1, eps=0.0)(torch.tensor([[1.0], [5.0]])).flatten().tolist()
    [0.5, 2.5]
    """

    _shown = (*ChannelNorm._shown, "rms")

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
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype
        )
        self.running_mean = None
        self.rms = rms

    def _batch_normalization(self, h: Tensor) -> tuple[Tensor, Tensor]:
        mean, inverse = broadcast_statistics(h, self.eps)
        if self.rms:
            inverse = (h.square().mean(over_channels(h), keepdim=True) + self.eps).rsqrt()
        return torch.zeros_like(mean), inverse

    def _normalize_by_batch(self, h: Tensor) -> Tensor:
        self._check_batch(h)
        reference = next((t for t in (self.running_var, self.weight) if t is not None), h)
        h, mean, variance = with_mean_and_variance(h, reference.dtype)
        if self.rms:
            variance = variance + mean.square()
        constant = variance.detach()
        if self.training:
            n_values = h.numel() // h.shape[1]
            self._track(None, constant if self.rms else constant * (n_values / (n_values - 1)))
        # ones, with the gradient of 1 / sigma
        scale = ((constant + self.eps) / (variance + self.eps)).sqrt()
        weight = scale
        if self.weight is not None:
            weight = self.weight * scale
        return F.batch_norm(
            h, torch.zeros_like(constant), constant, weight, self.bias, False, 0.0, self.eps
        )


class VarianceOnlyBatchNorm1d(VarianceOnlyBatchNorm, dimensions=1):
    """VarianceOnlyBatchNorm of [n, C] or [n, C, length].

    Args:
        num_features: Number of channels C.
        eps: Added to variances inside the square root, 0 or larger.
        momentum: Weight of the newest batch in the running statistics, in [0, 1]; None for the plain average of all
            batches.
        affine: Whether the layer has gamma and beta, one number per channel each.
        track_running_stats: Whether running statistics are tracked for evaluation; without them, evaluation uses those
            of the batch.
        rms: Whether deviations are from 0 rather than from the batch mean.
        device: Device of the parameters and buffers; None for torch's default.
        dtype: Their floating-point type; None for torch's default.
    """


class VarianceOnlyBatchNorm2d(VarianceOnlyBatchNorm, dimensions=2):
    """VarianceOnlyBatchNorm of [n, C, height, width].

    Args:
        num_features: Number of channels C.
        eps: Added to variances inside the square root, 0 or larger.
        momentum: Weight of the newest batch in the running statistics, in [0, 1]; None for the plain average of all
            batches.
        affine: Whether the layer has gamma and beta, one number per channel each.
        track_running_stats: Whether running statistics are tracked for evaluation; without them, evaluation uses those
            of the batch.
        rms: Whether deviations are from 0 rather than from the batch mean.
        device: Device of the parameters and buffers; None for torch's default.
        dtype: Their floating-point type; None for torch's default.
    """


class VarianceOnlyBatchNorm3d(VarianceOnlyBatchNorm, dimensions=3):
    """VarianceOnlyBatchNorm of [n, C, depth, height, width].

    Args:
        num_features: Number of channels C.
        eps: Added to variances inside the square root, 0 or larger.
        momentum: Weight of the newest batch in the running statistics, in [0, 1]; None for the plain average of all
            batches.
        affine: Whether the layer has gamma and beta, one number per channel each.
        track_running_stats: Whether running statistics are tracked for evaluation; without them, evaluation uses those
            of the batch.
        rms: Whether deviations are from 0 rather than from the batch mean.
        device: Device of the parameters and buffers; None for torch's default.
        dtype: Their floating-point type; None for torch's default.
    """
