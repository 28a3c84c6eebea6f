r"""Layouts: mapping of a layer's input to columns [N, K, T], and back.

A weight of a linear or convolutional layer is used at T positions of a sample (tokens, windows of an image), and

$$\frac{\partial f_c(x_n)}{\partial W} = \sum_{t=1}^{T} g_{cnt}\, a_{nt}^\top,$$

with a_nt the input at position t and g_cnt the derivative of output c by the layer's output there. A layout extracts
the a_nt from the layer's input, and propagates derivatives by them back to it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import override

Columns = Float[Tensor, "n k t"]
Inputs = Float[Tensor, "n ..."]

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Layout(ABC):
    """Mapping of a layer's input to columns."""

    ones: bool  # whether a row of ones is appended to the columns: W a + b = (W, b) (a, 1)

    @abstractmethod
    def unfold(self, inputs: Inputs) -> Columns:
        """Return the columns, with the row of ones last."""

    @abstractmethod
    def width(self, inputs: Inputs) -> int:
        """Return K, the row of ones included."""

    def columns(self, inputs: Inputs) -> Columns:
        """Return the columns, differentiable by the inputs (at least once)."""
        return self.unfold(inputs)

    @abstractmethod
    def fold(self, gradient: Columns, inputs: Inputs) -> Inputs:
        """Return the derivative by the inputs from that by the columns."""


class _Unfold(torch.autograd.Function):
    """Windows as a function with derivative `fold`, far faster than a strided view's."""

    @staticmethod
    def forward(ctx, inputs: Tensor, layout: Windows) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(inputs)
        ctx.layout = layout
        if layout.is_view:
            return layout.unfold(inputs).clone()
        return layout.unfold(inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (inputs,) = ctx.saved_tensors
        return ctx.layout.fold(gradient, inputs), None


@dataclass(frozen=True)
class PrecomputedColumns(Layout):
    """Inputs [N, K, T] that are the columns, including any row of ones."""

    @override
    def width(self, inputs: Tensor) -> int:
        return inputs.shape[1]

    @override
    def unfold(self, inputs: Tensor) -> Tensor:
        return inputs

    @override
    def fold(self, gradient: Tensor, inputs: Tensor) -> Tensor:
        return gradient


@dataclass(frozen=True)
class Tokens(Layout):
    """Inputs [N, ..., K] of a linear layer: one column per position of the middle dimensions."""

    @override
    def width(self, inputs: Tensor) -> int:
        return inputs.shape[-1] + self.ones

    @override
    def unfold(self, inputs: Tensor) -> Tensor:
        tokens = inputs.reshape(len(inputs), -1, inputs.shape[-1])
        return (F.pad(tokens, (0, 1), value=1.0) if self.ones else tokens).transpose(1, 2)

    @override
    def fold(self, gradient: Tensor, inputs: Tensor) -> Tensor:
        return gradient[:, : inputs.shape[-1]].transpose(1, 2).reshape(inputs.shape)


@dataclass(frozen=True)
class Windows(Layout):
    """Padded inputs [N, channels, *space] of a convolution: one column per window."""

    kernel_size: Sizes
    stride: Sizes
    dilation: Sizes

    @property
    def is_view(self) -> bool:
        """True for windows of one pixel, whose columns share the memory of contiguous inputs."""
        return not self.ones and all(size == 1 for size in (*self.kernel_size, *self.stride))

    @override
    def width(self, inputs: Tensor) -> int:
        return inputs.shape[1] * math.prod(self.kernel_size) + self.ones

    def n_windows(self, space: Sizes) -> Sizes:
        """Return the number of windows along every dimension of `space`."""
        # A window covers dilation (kernel - 1) + 1 pixels; the first starts at 0, the last fits into `size`.
        sizes = zip(space, self.kernel_size, self.stride, self.dilation, strict=True)
        return tuple(
            (size - dilation * (kernel - 1) - 1) // stride + 1
            for size, kernel, stride, dilation in sizes
        )

    @override
    def unfold(self, inputs: Tensor) -> Tensor:
        # A strided view and one copy: 1.5 to 3.6 times faster than F.unfold on CPU, and for any dimension.
        inputs = inputs.contiguous()
        n, channels, *space = inputs.shape
        counts = self.n_windows(tuple(space))
        steps = inputs.stride()[2:]
        # Entry k of window t is pixel dilation * k + stride * t of every dimension of space: as dimensions k and t of
        # one view these have the strides dilation * step and stride * step.
        within = tuple(step * dilation for step, dilation in zip(steps, self.dilation, strict=True))
        between = tuple(step * stride for step, stride in zip(steps, self.stride, strict=True))
        shape = (n, channels, *self.kernel_size, *counts)
        windows = inputs.as_strided(shape, (*inputs.stride()[:2], *within, *between))
        k = channels * math.prod(self.kernel_size)
        t = math.prod(counts)
        if not self.ones:
            return windows.reshape(n, k, t)
        columns = inputs.new_empty(n, k + 1, t)
        columns[:, :k].view(shape).copy_(windows)
        columns[:, k] = 1.0
        return columns

    @override
    def columns(self, inputs: Tensor) -> Tensor:
        columns: Any = _Unfold.apply(inputs, self)
        return columns

    @override
    def fold(self, gradient: Tensor, inputs: Tensor) -> Tensor:
        # Pixel i is entry k of every window t with dilation * k + stride * t = i, so that its derivative is the sum of
        # theirs. The row of ones depends on no input.
        _, channels, *space = inputs.shape
        gradient = gradient[:, : channels * math.prod(self.kernel_size)]
        if len(space) > 2:
            return self._fold_by_offsets(gradient, inputs)
        flat = 2 - len(space)  # a sequence is an image of height 1
        folded = F.fold(
            gradient,
            (*[1] * flat, *space),
            (1,) * flat + self.kernel_size,
            (1,) * flat + self.dilation,
            0,
            (1,) * flat + self.stride,
        )
        return folded.reshape(inputs.shape)

    def _fold_by_offsets(self, gradient: Tensor, inputs: Tensor) -> Tensor:
        n, channels, *space = inputs.shape
        counts = self.n_windows(tuple(space))
        # Entry k of all windows together is the inputs from dilation * k on, in steps of the stride: one sum per entry.
        gradient = gradient.reshape(n, channels, math.prod(self.kernel_size), *counts)
        folded = torch.zeros_like(inputs)
        offsets = torch.cartesian_prod(*(torch.arange(size) for size in self.kernel_size)).reshape(
            -1, len(space)
        )
        for i, offset in enumerate(offsets.tolist()):
            starts = [o * dilation for o, dilation in zip(offset, self.dilation, strict=True)]
            region = tuple(
                slice(start, start + stride * (count - 1) + 1, stride)
                for start, stride, count in zip(starts, self.stride, counts, strict=True)
            )
            folded[(slice(None), slice(None), *region)] += gradient[:, :, i]
        return folded
