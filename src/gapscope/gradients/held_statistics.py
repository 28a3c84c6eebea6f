r"""BatchNorm in training mode: derivatives of single samples, with the statistics of the batch held fixed.

$y_n = \gamma\,(h_n - \mu)\,/\,\sigma + \beta$ with the mean $\mu$ and deviation $\sigma$ of the mini-batch lets every
sample act on every other. While the statistics are held, the derivative is that of the network in which they are
constants, $\partial y_n / \partial h_n = \gamma / \sigma$, and nothing flows from sample to sample. Values, running
statistics and the ordinary backward pass of the loss stay what they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gapscope.base.errors import ReplaceLayer

# How many bodies of `held` are running. A plain number: autograd's backward passes run in threads of their own.
_held = 0


def uses_batch_statistics(module: nn.Module) -> bool:
    """Whether a layer is a BatchNorm that normalises by the statistics of its batch."""
    return isinstance(module, _BatchNorm) and (module.training or module.running_mean is None)


@contextmanager
def held() -> Iterator[None]:
    """Hold the statistics of `holdable` layers fixed in the backward passes of the body."""
    global _held
    _held += 1
    try:
        yield
    finally:
        _held -= 1


def _over(h: Tensor) -> list[int]:
    """All dimensions but that of the channels."""
    return [dim for dim in range(h.ndim) if dim != 1]


def _per_channel(values: Tensor, h: Tensor) -> Tensor:
    return values.reshape(-1, *[1] * (h.ndim - 2))


class _Holdable(torch.autograd.Function):
    """The output itself; backwards either into the layer that made it, or past its statistics."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, output: Tensor, h: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor | None, bias: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(h, mean, inverse, weight)
        ctx.mark_dirty(output)  # handed on, not copied
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        if not _held:
            return gradient, *[None] * 5
        h, mean, inverse, weight = ctx.saved_tensors
        _, wants_h, _, _, wants_weight, wants_bias = ctx.needs_input_grad
        slope = inverse if weight is None else weight * inverse
        by_h = by_weight = by_bias = None
        if wants_h:
            by_h = (gradient * _per_channel(slope, h)).to(h.dtype)
        if wants_weight:
            by_weight = (gradient * (h - _per_channel(mean, h)) * _per_channel(inverse, h)).sum(_over(h)).to(weight)
        if wants_bias:
            by_bias = gradient.sum(_over(h)).to(weight)
        return None, by_h, None, None, by_weight, by_bias


def _seen(parameter: Tensor | None) -> Tensor | None:
    """The parameter as torch functions see it, which may be a substitute."""
    return None if parameter is None else parameter.view_as(parameter)


def _pass_by(module: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any], output: Tensor) -> Tensor:
    """A forward hook: what follows the layer is given an output whose derivative can go past the statistics."""
    if not output.requires_grad:
        return output
    (h,) = arguments or keywords.values()
    # Statistics with their graph: the gradient of a penalty is that of its value, in which they move with the weights.
    at_least_single = h.float() if h.dtype in (torch.float16, torch.bfloat16) else h
    variance, mean = torch.var_mean(at_least_single, _over(h), correction=0)
    inverse = (variance + module.eps).rsqrt()
    result: Any = _Holdable.apply(output, h, mean, inverse, _seen(module.weight), _seen(module.bias))
    return result


@contextmanager
def holdable(modules: Mapping[str, nn.Module], *, needed: bool = True) -> Iterator[None]:
    """Let the statistics of BatchNorm layers in training mode be held in backward passes of what the body computes.

    Args:
        modules: The modules of a network by name.
        needed: Whether every layer that uses the statistics of its batch must be one whose statistics can be held.

    Yields:
        Nothing.

    Raises:
        ReplaceLayer: A layer uses the statistics of the batch in evaluation mode, or those of several processes.
    """
    with ExitStack() as stack:
        for name, module in modules.items():
            if not uses_batch_statistics(module):
                continue
            if not module.training or isinstance(module, nn.SyncBatchNorm):
                if not needed:
                    continue
                raise ReplaceLayer(
                    "BatchNorm must not mix the samples of a batch where gradients of single samples are needed; "
                    f"'{name}' uses the statistics of the batch{'' if module.training else ' in evaluation mode'}. "
                    "Put it into evaluation mode with running statistics (module.eval()), or use GroupNorm."
                )
            stack.callback(module.register_forward_hook(_pass_by, prepend=True, with_kwargs=True).remove)
        yield
