r"""Population normalisation: the deterministic part of batch normalisation.

$y = \gamma (h - \mu_P) / \sigma_P + \beta$ with the mean and standard deviation of the training population, which
`refresh_population` measures and which stay frozen in between.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from gapscope.batch_norm.layers._channel_norm import ChannelNorm, batch_mean_and_variance, over_channels, per_channel

_backward = torch.ops.aten.native_batch_norm_backward


class _NormaliseByPopulation(torch.autograd.Function):
    """Value by population statistics, gradient through batch statistics (batch renormalisation).

    The gradient is that of gamma * ((h - mu_B) / sigma_B * r + d) + beta, where r = sigma_B / sigma_P and
    d = (mu_B - mu_P) / sigma_P are constants and make the value equal (h - mu_P) / sigma_P.
    """

    @staticmethod
    def forward(h: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, eps: float) -> Tensor:
        return F.batch_norm(h, mean, var, weight, bias, False, 0.0, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        h, weight, _, mean, var, ctx.eps = inputs
        ctx.save_for_backward(h, weight, mean, var)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = gradients
        h, weight, mean, var = ctx.saved_tensors
        inverse = (var + ctx.eps).rsqrt()
        scale = inverse if weight is None else weight * inverse
        if torch.is_grad_enabled():
            return *_differentiable_gradient(g, h, scale, mean, inverse, weight is not None, ctx.eps), *[None] * 3
        batch_mean, batch_variance = batch_mean_and_variance(h, mean.dtype)
        batch_inverse = (batch_variance + ctx.eps).rsqrt()
        to_h, to_weight, to_bias = _backward(
            g, h, scale / batch_inverse, None, None, batch_mean, batch_inverse, True, ctx.eps, [True] * 3
        )
        if weight is None:
            return to_h, *[None] * 5
        to_weight = to_weight * inverse / batch_inverse + to_bias * (batch_mean - mean) * inverse
        return to_h, to_weight, to_bias, *[None] * 3


def _differentiable_gradient(
    g: Tensor, h: Tensor, scale: Tensor, mean: Tensor, inverse: Tensor, affine: bool, eps: float
) -> tuple[Tensor | None, ...]:
    over = over_channels(h)
    centred = h - h.mean(over, keepdim=True)
    normalised = centred / (centred.square().mean(over, keepdim=True) + eps).sqrt()
    through_statistics = g.mean(over, keepdim=True) + normalised * (g * normalised).mean(over, keepdim=True)
    to_h = per_channel(scale, h) * (g - through_statistics)
    if not affine:
        return to_h, None, None
    to_weight = (g * (h - per_channel(mean, h)) * per_channel(inverse, h)).sum(over)
    return to_h, to_weight, g.sum(over)


class PopulationNorm(ChannelNorm):
    r"""Normalises by population statistics that are frozen between refreshes: $\gamma (h-\mu_P)/\sigma_P + \beta$.

    In training the value is the same as in evaluation, bit for bit. The gradient still runs through the statistics
    of the mini-batch, by the identity of batch renormalisation,
    $\frac{h-\mu_P}{\sigma_P} = \frac{h-\mu_B}{\sigma_B} r + d$ with $r=\sigma_B/\sigma_P$,
    $d=(\mu_B-\mu_P)/\sigma_P$ held constant, so that it is invariant to the scale of the weights before the layer, as
    with weight normalisation. With `detach` no gradient runs through the statistics.

    The statistics are 0 and 1 until `refresh_population` (or a `PopulationRefresh`) has set them. The state dictionary
    has the keys of torch's BatchNorm, and a BatchNorm's state gives the same evaluation function;
    `num_batches_tracked` counts refreshes. A channel that is constant over the population is divided by sqrt(eps).

    Reference: Luo et al. 2019, sections 2.1 and 5 ("PN"); Ioffe 2017 (batch renormalisation), eq. 1-2.

    Args:
        num_features: Number of channels.
        eps: Added to the variance.
        affine: Whether there are gamma and beta.
        detach: Whether the statistics are constants in the backward pass.
        device: Device of parameters and buffers.
        dtype: Floating-point type of parameters and buffers.

    >>> layer = PopulationNorm1d(1, eps=0.0)
    >>> _ = layer.running_mean.fill_(1.0), layer.running_var.fill_(4.0)
    >>> layer(torch.tensor([[1.0], [5.0]])).flatten().tolist()
    [0.0, 2.0]
    """

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

    def extra_repr(self) -> str:
        """Settings that the layer has."""
        return f"{self.num_features}, eps={self.eps}, affine={self.affine}, detach={self.detach}"

    def forward(self, h: Float[Tensor, "n c *positions"]) -> Float[Tensor, "n c *positions"]:
        """Normalise a batch.

        Args:
            h: Batch of pre-activations.

        Returns:
            The normalised batch, in the type of `h`.

        Raises:
            InvalidInput: The shape does not fit, or a gradient is to run through the statistics of a single value.
        """
        self._check_shape(h)
        if not self.training or self.detach:
            return F.batch_norm(h, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)
        self._check_batch(h)
        return _NormaliseByPopulation.apply(h, self.weight, self.bias, self.running_mean, self.running_var, self.eps)


class PopulationNorm1d(PopulationNorm):
    """PopulationNorm of [n, C] or [n, C, length]."""

    _dimensions: ClassVar[tuple[int, ...]] = (2, 3)


class PopulationNorm2d(PopulationNorm):
    """PopulationNorm of [n, C, height, width]."""

    _dimensions: ClassVar[tuple[int, ...]] = (4,)


class PopulationNorm3d(PopulationNorm):
    """PopulationNorm of [n, C, depth, height, width]."""

    _dimensions: ClassVar[tuple[int, ...]] = (5,)
