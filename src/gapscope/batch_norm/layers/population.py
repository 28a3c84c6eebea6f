r"""Population normalization: the deterministic part of batch normalization.

$y = \gamma (h - \mu_P) / \sigma_P + \beta$ with the mean and standard deviation of the training population, which
`refresh_population` measures and which stay frozen in between.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gapscope.batch_norm.layers._channel_norm import (
    ChannelNorm,
    over_channels,
    per_channel,
    with_mean_and_variance,
)


class _SecondDerivative(torch.autograd.Function):
    """Identity whose gradient is explicit, so that it can be differentiated again."""

    # The gradient is that of batch renormalization with r and d constant. Both depend on h, so that this gradient is
    # not the gradient of any function, and differentiating its expression again would miss their change. Here the
    # factor gamma r / sigma_B = gamma / sigma_P is a constant, as it is in the gradient.

    @staticmethod
    def forward(
        y: Tensor,
        h: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        inverse: Tensor,
        eps: float,
    ) -> Tensor:
        return y.detach()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, h, weight, _, mean, inverse, ctx.eps = inputs
        ctx.save_for_backward(h, weight, mean, inverse)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = gradients
        if not torch.is_grad_enabled():
            return g, *[None] * 6
        h, weight, mean, inverse = ctx.saved_tensors
        over = over_channels(h)
        centred = h - h.mean(over, keepdim=True)
        normalized = centred / (centred.square().mean(over, keepdim=True) + ctx.eps).sqrt()
        through_statistics = g.mean(over, keepdim=True) + normalized * (g * normalized).mean(
            over, keepdim=True
        )
        to_h = per_channel(inverse, h) * (g - through_statistics)
        if weight is None:
            return None, to_h, *[None] * 5
        to_weight = (g * (h - per_channel(mean, h)) * per_channel(inverse, h)).sum(over)
        return None, per_channel(weight, h) * to_h, to_weight, g.sum(over), *[None] * 3


class PopulationNorm(ChannelNorm):
    r"""Normalization by population statistics, $\gamma (h-\mu_P)/\sigma_P + \beta$.

    The value in training equals that in evaluation, bit for bit. The gradient flows through the statistics of the
    mini-batch, by the identity of batch renormalization, $\frac{h-\mu_P}{\sigma_P} = \frac{h-\mu_B}{\sigma_B} r + d$
    with $r=\sigma_B/\sigma_P$, $d=(\mu_B-\mu_P)/\sigma_P$ as constants.

    The statistics are 0 and 1 until `refresh_population` sets them; `num_batches_tracked` counts refreshes. Loading a
    BatchNorm's state dictionary preserves its evaluation function. A channel that is constant over the population is
    divided by sqrt(eps).

    Reference: Luo et al. 2019, sections 2.1 and 5 ("PN"); Ioffe 2017 (batch renormalization), eq. 1-2.

    Args:
        num_features: Number of channels C.
        eps: Added to variances inside the square root, 0 or larger.
        affine: Whether the layer has gamma and beta, one number per channel each.
        detach: Whether the statistics are constants in the backward pass.
        device: Device of the parameters and buffers; None for torch's default.
        dtype: Their floating-point type; None for torch's default.

    >>> layer = PopulationNorm1d(1, eps=0.0)
    >>> _ = layer.running_mean.fill_(1.0), layer.running_var.fill_(4.0)
    >>> layer(torch.tensor([[1.0], [5.0]])).flatten().tolist()
    [0.0, 2.0]
    """

    _shown = ("eps", "affine", "detach")
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        affine: bool = True,
        *,
        detach: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_features, eps, momentum=0.0, affine=affine, device=device, dtype=dtype)
        self.detach = detach

    @property
    def depends_on_batch(self) -> bool:
        """True if the gradient of the next forward pass flows through the statistics of the batch."""
        return self.training and not self.detach

    def _batch_normalization(self, h: Tensor) -> tuple[Tensor, Tensor]:
        inverse = (self.running_var + self.eps).rsqrt()
        return per_channel(self.running_mean, h), per_channel(inverse, h)

    def _normalize_by_batch(self, h: Tensor) -> Tensor:
        self._check_batch(h)
        h, mean, variance = with_mean_and_variance(h, self.running_mean.dtype)
        inverse = (self.running_var + self.eps).rsqrt()
        # (h - mu_B) / sigma_B r + d is u ratio + shift with u = (h - mu_P) / sigma_P, the constants
        # r = sigma_B / sigma_P and d = (mu_B - mu_P) / sigma_P, and ratio 1 and shift 0 in value but not in gradient
        ratio = ((variance.detach() + self.eps) / (variance + self.eps)).sqrt()
        d = (mean - self.running_mean) * inverse
        shift = d.detach() - d * ratio
        weight = ratio
        if self.weight is not None:
            weight = self.weight * ratio
            shift = self.weight * shift
        bias = shift if self.bias is None else self.bias + shift
        y = F.batch_norm(h, self.running_mean, self.running_var, weight, bias, False, 0.0, self.eps)
        return _SecondDerivative.apply(
            y, h, self.weight, self.bias, self.running_mean, inverse, self.eps
        )


class PopulationNorm1d(PopulationNorm, dimensions=1):
    """PopulationNorm of [n, C] or [n, C, length].

    Args:
        num_features: Number of channels C.
        eps: Added to variances inside the square root, 0 or larger.
        affine: Whether the layer has gamma and beta, one number per channel each.
        detach: Whether the statistics are constants in the backward pass.
        device: Device of the parameters and buffers; None for torch's default.
        dtype: Their floating-point type; None for torch's default.
    """


class PopulationNorm2d(PopulationNorm, dimensions=2):
    """PopulationNorm of [n, C, height, width].

    Args:
        num_features: Number of channels C.
        eps: Added to variances inside the square root, 0 or larger.
        affine: Whether the layer has gamma and beta, one number per channel each.
        detach: Whether the statistics are constants in the backward pass.
        device: Device of the parameters and buffers; None for torch's default.
        dtype: Their floating-point type; None for torch's default.
    """


class PopulationNorm3d(PopulationNorm, dimensions=3):
    """PopulationNorm of [n, C, depth, height, width].

    Args:
        num_features: Number of channels C.
        eps: Added to variances inside the square root, 0 or larger.
        affine: Whether the layer has gamma and beta, one number per channel each.
        detach: Whether the statistics are constants in the backward pass.
        device: Device of the parameters and buffers; None for torch's default.
        dtype: Their floating-point type; None for torch's default.
    """
