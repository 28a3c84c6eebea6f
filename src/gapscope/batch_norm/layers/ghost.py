"""Ghost batch normalization: statistics of small parts of a large batch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from gapscope.base.errors import check_range
from gapscope.batch_norm.layers._channel_norm import ChannelNorm
from gapscope.gradients.frozen_batch_stats import statistics_of


def _as_channels(h: Tensor, parts: int) -> Tensor:
    """Return [n, C, ...] as [n / parts, parts C, ...]: channel c of part i becomes channel i C + c."""
    # row j holds samples j parts to (j + 1) parts - 1
    return h.reshape(len(h) // parts, parts * h.shape[1], *h.shape[2:])


def normalize_parts(
    h: Tensor, parts: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch-normalize equal parts of a batch separately (sample i is in part i mod parts).

    Returns the normalized batch, and the means and unbiased variances [parts, C].
    """
    mean, variance = torch.zeros(
        2, parts * h.shape[1], dtype=(h if weight is None else weight).dtype, device=h.device
    )
    if parts == 1:
        # Without a view, which may change the stride of a dimension of size 1, see `_channel_norm`.
        return (
            F.batch_norm(h, mean, variance, weight, bias, True, 1.0, eps),
            mean[None],
            variance[None],
        )
    weight, bias = (None if t is None else t.repeat(parts) for t in (weight, bias))
    y = F.batch_norm(_as_channels(h, parts), mean, variance, weight, bias, True, 1.0, eps)
    return y.view(h.shape), mean.view(parts, -1), variance.view(parts, -1)


class GhostBatchNorm(ChannelNorm):
    r"""Batch normalization by statistics of "ghost batches" of `ghost_size` samples.

    A batch of n samples is partitioned into max(1, n // ghost_size) parts whose sizes differ by at most one. Of k equal
    parts, sample i belongs to part i mod k, which costs no copy; else the first samples form the larger parts. The
    running statistics move once per step, towards the plain mean over the parts. Evaluation and state dictionary are
    those of torch's BatchNorm. Each row of the input counts as a sample: tokens flattened to [n T, C] are divided
    among parts token by token. Pass them as [n, C, T] to `GhostBatchNorm1d`, so that samples stay whole.

    Reference: Hoffer et al. 2017, algorithm 1. Common parameters: see `gapscope.batch_norm`.

    Args:
        num_features: Number of channels C.
        ghost_size: Samples per part.
        eps: Added to variances inside the square root, 0 or larger.
        momentum: Weight of the newest batch in the running statistics, in [0, 1]; None for the plain average of all
            batches.
        affine: Whether the layer has gamma and beta, one number per channel each.
        track_running_stats: Whether running statistics are tracked for evaluation; without them, evaluation uses those
            of the batch.
        device: Device of the parameters and buffers; None for torch's default.
        dtype: Their floating-point type; None for torch's default.

    >>> layer = GhostBatchNorm1d(1, ghost_size=2)
    >>> layer(torch.tensor([[1.0], [10.0], [3.0], [30.0]])).round(decimals=4).flatten().tolist()
    [-1.0, -1.0, 1.0, 1.0]
    """

    _shown = (*ChannelNorm._shown, "ghost_size")

    def __init__(
        self,
        num_features: int,
        ghost_size: int = 32,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype
        )
        check_range("ghost_size of GhostBatchNorm", ghost_size, 1)
        self.ghost_size = ghost_size

    def _blocks(self, h: Tensor) -> list[tuple[Tensor, int]]:
        """Return blocks of a batch, each with the number of equal parts that it is divided into."""
        parts = max(1, len(h) // self.ghost_size)
        larger = len(h) % parts
        size = len(h) // parts
        self._check_batch(h[:size])
        # equal parts need no split, whose backward pass would copy the whole gradient
        if not larger:
            return [(h, parts)]
        first, rest = h.tensor_split([larger * (size + 1)])
        return [(first, larger), (rest, parts - larger)]

    def _batch_normalization(self, h: Tensor) -> tuple[Tensor, Tensor]:
        rows = []
        for block, parts in self._blocks(h):
            statistics = torch.stack(statistics_of(_as_channels(block, parts), self.eps))
            # [2, parts, C], for samples i, i + parts, ...
            rows.append(statistics.view(2, parts, -1).repeat(1, len(block) // parts, 1))
        mean, inverse = torch.cat(rows, 1).view(2, *h.shape[:2], *[1] * (h.ndim - 2))
        return mean, inverse

    def _normalize_by_batch(self, h: Tensor) -> Tensor:
        normalized = [
            normalize_parts(block, parts, self.weight, self.bias, self.eps)
            for block, parts in self._blocks(h)
        ]
        outputs, means, variances = map(list, zip(*normalized, strict=True))
        if self.training:
            self._track(torch.cat(means).mean(0), torch.cat(variances).mean(0))
        if len(outputs) == 1:
            return outputs[0]
        return torch.cat(outputs)


class GhostBatchNorm1d(GhostBatchNorm, dimensions=1):
    """GhostBatchNorm of [n, C] or [n, C, length].

    Args:
        num_features: Number of channels C.
        ghost_size: Samples per part, 1 or more.
        eps: Added to variances inside the square root, 0 or larger.
        momentum: Weight of the newest batch in the running statistics, in [0, 1]; None for the plain average of all
            batches.
        affine: Whether the layer has gamma and beta, one number per channel each.
        track_running_stats: Whether running statistics are tracked for evaluation; without them, evaluation uses those
            of the batch.
        device: Device of the parameters and buffers; None for torch's default.
        dtype: Their floating-point type; None for torch's default.
    """


class GhostBatchNorm2d(GhostBatchNorm, dimensions=2):
    """GhostBatchNorm of [n, C, height, width].

    Args:
        num_features: Number of channels C.
        ghost_size: Samples per part, 1 or more.
        eps: Added to variances inside the square root, 0 or larger.
        momentum: Weight of the newest batch in the running statistics, in [0, 1]; None for the plain average of all
            batches.
        affine: Whether the layer has gamma and beta, one number per channel each.
        track_running_stats: Whether running statistics are tracked for evaluation; without them, evaluation uses those
            of the batch.
        device: Device of the parameters and buffers; None for torch's default.
        dtype: Their floating-point type; None for torch's default.
    """


class GhostBatchNorm3d(GhostBatchNorm, dimensions=3):
    """GhostBatchNorm of [n, C, depth, height, width].

    Args:
        num_features: Number of channels C.
        ghost_size: Samples per part, 1 or more.
        eps: Added to variances inside the square root, 0 or larger.
        momentum: Weight of the newest batch in the running statistics, in [0, 1]; None for the plain average of all
            batches.
        affine: Whether the layer has gamma and beta, one number per channel each.
        track_running_stats: Whether running statistics are tracked for evaluation; without them, evaluation uses those
            of the batch.
        device: Device of the parameters and buffers; None for torch's default.
        dtype: Their floating-point type; None for torch's default.
    """
