"""Mean-only batch normalization: subtraction of the batch mean without division."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from gapscope.batch_norm.layers._channel_norm import ChannelNorm
from gapscope.batch_norm.layers._statistics import with_mean


class MeanOnlyBatchNorm(ChannelNorm):
    r"""Subtraction of the batch mean without division: $y = \gamma (h - \mu_B) + \beta$.

    Evaluation uses the running mean. Use `scale=False` for weight-normalized layers, whose length g replaces gamma. A
    channel that is constant over the batch becomes beta. `running_var` does not exist, so a BatchNorm's state
    dictionary, which describes another function, fails in `load_state_dict`; use `replace_batch_norm`.

    Reference: Salimans and Kingma 2016, section 3, eq. 7-8; Luo et al. 2019, section 5 ("WN+mean-only BN").

    Args:
        scale: Whether there is gamma (only where `affine`).

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
        """Return the layer's settings."""
        return (
            f"{self.num_features}, momentum={self.momentum}, affine={self.affine}, scale={self.weight is not None}, "
            f"track_running_stats={self.track_running_stats}"
        )

    def _normalize_by_batch(self, h: Tensor) -> Tensor:
        self._check_batch(h)
        reference = next((t for t in (self.running_mean, self.bias) if t is not None), h)
        h, mean = with_mean(h, reference.dtype)
        centre = mean.detach()
        if self.training:
            self._track(centre, None)
        ones = torch.ones_like(centre)
        weight = ones if self.weight is None else self.weight  # torch loses second derivatives where there is none
        shift = weight * (centre - mean)  # zeros, with the gradient of the mean
        bias = shift if self.bias is None else self.bias + shift
        return F.batch_norm(h, centre, ones, weight, bias, False, 0.0, 0.0)


class MeanOnlyBatchNorm1d(MeanOnlyBatchNorm, dimensions=1):
    """MeanOnlyBatchNorm of [n, C] or [n, C, length]."""


class MeanOnlyBatchNorm2d(MeanOnlyBatchNorm, dimensions=2):
    """MeanOnlyBatchNorm of [n, C, height, width]."""


class MeanOnlyBatchNorm3d(MeanOnlyBatchNorm, dimensions=3):
    """MeanOnlyBatchNorm of [n, C, depth, height, width]."""
