"""Normalization per channel and its statistics."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from gapscope.base.errors import InvalidInput, check_range
from gapscope.inspection.norms import Normalizing

_POSITIONS = {2: "", 3: ", length", 4: ", height, width", 5: ", depth, height, width"}
_DIMENSIONS = {1: (2, 3), 2: (4,), 3: (5,)}


class ChannelNorm(Normalizing):
    """Base of layers that normalize each channel of [n, C, ...].

    Parameters and buffers have the names of torch's BatchNorm: weight (gamma), bias (beta), running_mean, running_var
    (unbiased), num_batches_tracked. Buffers that a layer does not use are None. NaN and infinity propagate as in
    torch's BatchNorm, to their own channel only. Common parameters: see `gapscope.batch_norm`.
    """

    _shown: ClassVar[tuple[str, ...]] = ("eps", "momentum", "affine", "track_running_stats")
    _dimensions: ClassVar[tuple[int, ...]] = ()
    weight: Tensor | None
    bias: Tensor | None
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init_subclass__(cls, dimensions: int | None = None) -> None:
        super().__init_subclass__()
        if dimensions is not None:
            cls._dimensions = _DIMENSIONS[dimensions]

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_range(f"num_features of {type(self).__name__}", num_features, 1)
        check_range(f"eps of {type(self).__name__}", eps, 0)
        if momentum is not None:
            check_range(f"momentum of {type(self).__name__}", momentum, 0, 1)
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        ones = torch.ones(num_features, device=device, dtype=dtype)
        self.register_parameter("weight", nn.Parameter(ones.clone()) if affine else None)
        self.register_parameter("bias", nn.Parameter(torch.zeros_like(ones)) if affine else None)
        self.register_buffer(
            "running_mean", torch.zeros_like(ones) if track_running_stats else None
        )
        self.register_buffer("running_var", ones.clone() if track_running_stats else None)
        count = torch.zeros((), dtype=torch.long, device=device)
        self.register_buffer("num_batches_tracked", count if track_running_stats else None)

    @property
    def depends_on_batch(self) -> bool:
        """True if the next forward pass normalizes by the statistics of the batch."""
        return self.training or not self.track_running_stats

    def reset_running_stats(self) -> None:
        """Set running means to 0, variances to 1 and the count of batches to 0."""
        for buffer, value in (
            (self.running_mean, 0),
            (self.running_var, 1),
            (self.num_batches_tracked, 0),
        ):
            if buffer is not None:
                buffer.fill_(value)

    def reset_parameters(self) -> None:
        """Reset the running statistics, gamma to 1 and beta to 0."""
        self.reset_running_stats()
        if self.weight is not None:
            nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def extra_repr(self) -> str:
        """Return the settings in the form of torch's BatchNorm."""
        return ", ".join(
            [str(self.num_features), *(f"{name}={getattr(self, name)}" for name in self._shown)]
        )

    def forward(self, h: Float[Tensor, "n c *positions"]) -> Float[Tensor, "n c *positions"]:
        """Normalize a batch, in the type of `h`.

        Args:
            h: Batch [n, C], or [n, C, ...] with 1 to 3 further dimensions as the class requires.
        """
        self._check_shape(h)
        if self.depends_on_batch:
            return self._normalize_by_batch(h)
        mean, variance = self._running_statistics()
        return F.batch_norm(h, mean, variance, self.weight, self.bias, False, 0.0, self.eps)

    def _running_statistics(self) -> tuple[Tensor, Tensor]:
        """Return the mean and variance of evaluation, 0 and 1 for those that the layer does not have."""
        mean, variance = self.running_mean, self.running_var
        present = variance if mean is None else mean
        assert present is not None
        if mean is None:
            mean = torch.zeros_like(present)
        if variance is None:
            variance = torch.ones_like(present)
        return mean, variance

    def normalization(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and 1 / sigma of the next forward pass, in shapes that broadcast to the batch.

        Args:
            h: Batch [n, C, ...].
        """
        if self.depends_on_batch:
            return self._batch_normalization(h)
        mean, variance = self._running_statistics()
        return per_channel(mean, h), per_channel((variance + self.eps).rsqrt(), h)

    def _batch_normalization(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Return `normalization` by the statistics of the batch."""
        raise NotImplementedError

    def _normalize_by_batch(self, h: Tensor) -> Tensor:
        """Normalize a training batch and update the running statistics."""
        raise NotImplementedError

    def _check_shape(self, h: Tensor) -> None:
        if h.ndim not in self._dimensions or h.shape[1] != self.num_features:
            shapes = " or ".join(
                f"[n, {self.num_features}{_POSITIONS[d]}]" for d in self._dimensions
            )
            raise InvalidInput(
                f"{type(self).__name__} takes inputs of shape {shapes}; got {list(h.shape)}."
            )

    def _check_batch(self, h: Tensor) -> None:
        if h.numel() < 2 * self.num_features:
            raise InvalidInput(
                f"{type(self).__name__} needs at least 2 values per channel for batch statistics; got an input of "
                f"shape {list(h.shape)}. Use a larger batch (drop_last=True in the DataLoader), or eval()."
            )

    def _track(self, mean: Tensor | None, variance: Tensor | None) -> None:
        """Move the running statistics towards those of a batch."""
        if self.num_batches_tracked is None:
            return
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            rate = self.momentum
            if rate is None:
                rate = 1 / self.num_batches_tracked.double()
            for running, newest in ((self.running_mean, mean), (self.running_var, variance)):
                if running is not None and newest is not None:
                    # as torch does: with differences, infinity minus infinity would become NaN
                    running.copy_((1 - rate) * running + rate * newest)


# Not those of `gapscope.gradients`: torch.compile traces these in networks, also in tests that check shapes there.
def per_channel(values: Tensor, like: Tensor) -> Tensor:
    """View [C] as [1, C, 1, ...] so that it broadcasts against `like` [n, C, ...]."""
    return values.view(1, -1, *[1] * (like.ndim - 2))


def over_channels(h: Tensor) -> list[int]:
    """Return the dimensions of [n, C, ...] over which a channel's statistics run."""
    return [0, *range(2, h.ndim)]


# The batch is returned as detach(), not view_as(h): that would change the stride of a dimension of size 1, by which
# torch distinguishes channels-last from contiguous, and batch norm's backward pass would mix up the values of an image.


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
        # In place is safe: g has no other user.
        return (g + constant if torch.is_grad_enabled() else g.add_(constant)), None


class _WithMeanAndVariance(torch.autograd.Function):
    """A batch, its mean and its biased variance [C]."""

    @staticmethod
    def forward(h: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        # the fused statistics of torch's synchronized batch norm: torch.var_mean takes up to 30 times as long
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
    """Return a batch [n, C, ...] for a single use, and its mean [C], in `dtype` or better."""
    return _WithMean.apply(h, dtype)  # type: ignore[return-value]


def with_mean_and_variance(h: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return a batch [n, C, ...] for a single use, its mean and its biased variance [C]."""
    return _WithMeanAndVariance.apply(h, dtype)  # type: ignore[return-value]
