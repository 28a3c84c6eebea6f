r"""Per-sample derivatives through training-mode BatchNorm with constant batch statistics.

In $y_n = \gamma\,(h_n - \mu)\,/\,\sigma + \beta$ the mean $\mu$ and deviation $\sigma$ of the mini-batch depend on all
samples. With frozen statistics the derivative is that of the network in which they are constants,
$\partial y_n / \partial h_n = \gamma / \sigma$, and samples are independent. Values, running statistics and the
ordinary backward pass of the loss are unchanged.
"""

from __future__ import annotations

import inspect
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gapscope.base.errors import ReplaceLayer
from gapscope.inspection.hooks import patch_forwards
from gapscope.inspection.norms import (
    Normalizing,
    check_no_batch_statistics,
    is_as_declared,
    normalizes_only,
    uses_batch_statistics,
)

# Number of active bodies of `freeze_batch_stats` per thread, and of those that skip derivatives by parameters. The key
# is the thread that recorded the pass, not the current one: backward passes may run in threads of their own.
_frozen: Counter[int] = Counter()
_without_parameters: Counter[int] = Counter()


@contextmanager
def freeze_batch_stats(*, parameters: bool = True) -> Iterator[None]:
    """Treat batch statistics as constants in the backward passes of the body.

    Without `parameters`, layers skip the derivatives by their own parameters.
    """
    thread = threading.get_ident()
    _frozen[thread] += 1
    _without_parameters[thread] += not parameters
    try:
        yield
    finally:
        _frozen[thread] -= 1
        _without_parameters[thread] -= not parameters
        if not _frozen[thread]:
            del _frozen[thread], _without_parameters[thread]


def skips_parameters(thread: int) -> bool:
    """Return whether a body of `freeze_batch_stats` without parameters is active for a pass of this thread."""
    return _without_parameters[thread] > 0


def over_channels(h: Tensor) -> list[int]:
    """Return the dimensions of [n, C, ...] over which a channel's statistics run."""
    return [0, *range(2, h.ndim)]


def per_channel(values: Tensor, like: Tensor) -> Tensor:
    """View [C] as [1, C, 1, ...] so that it broadcasts against `like` [n, C, ...]."""
    return values.view(1, -1, *[1] * (like.ndim - 2))


class _Statistics(torch.autograd.Function):
    """Mean and 1 / sigma per channel (faster than `var_mean` on a CPU)."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, eps: float) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        _, mean, inverse = torch.native_batch_norm(h, None, None, None, None, True, 0.0, eps)
        ctx.save_for_backward(h, mean, inverse)
        ctx.set_materialize_grads(False)
        return mean, inverse

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None]:
        h, mean, inverse = ctx.saved_tensors
        # None if a derivative bypasses the statistics: all first ones do, and second ones need the mean for gamma alone
        by_mean, by_inverse = gradients
        if by_mean is None and by_inverse is None:
            return None, None
        # Over the m numbers of a channel d mean / dh = 1 / m. With v = Var + eps, dv / dh = 2 (h - mean) / m, and
        # inverse = v^(-1/2) has d inverse / dh = -1/2 v^(-3/2) dv / dh = -inverse^3 (h - mean) / m.
        m = h.numel() // len(mean)
        if by_inverse is None:
            slope = torch.zeros_like(mean)
        else:
            slope = -by_inverse * inverse**3 / m
        by_h = (h - per_channel(mean, h)) * per_channel(slope, h)
        return by_h if by_mean is None else by_h + per_channel(by_mean / m, h), None


def statistics_of(h: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    r"""Return mean and $(\mathrm{Var} + \epsilon)^{-1/2}$ per channel, differentiable."""
    result: Any = _Statistics.apply(h, eps)
    return result


def broadcast_statistics(h: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return `statistics_of` as [1, C, 1, ...]."""
    mean, inverse = statistics_of(h, eps)
    return per_channel(mean, h), per_channel(inverse, h)


class _FreezableOutput(torch.autograd.Function):
    """Identity whose backward pass goes to the layer's output, or bypasses its statistics."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        output: Tensor,
        h: Tensor,
        mean: Tensor,
        inverse: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        owns: bool,
        thread: int,
    ) -> Tensor:
        ctx.save_for_backward(h, mean, inverse, weight)
        ctx.owns = owns
        ctx.thread = thread
        ctx.mark_dirty(output)  # returned without a copy
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        if not _frozen[ctx.thread]:
            return gradient, *[None] * 7
        h, mean, inverse, weight = ctx.saved_tensors
        _, wants_h, _, _, wants_weight, wants_bias, _, _ = ctx.needs_input_grad
        skips_parameters = ctx.owns and _without_parameters[ctx.thread]
        # y = weight (h - mean) inverse + bias, with constant mean and inverse
        slope = inverse if weight is None else per_channel(weight, h) * inverse
        by_h = by_weight = by_bias = None
        if wants_h:
            by_h = (gradient * slope).to(h.dtype)
        if wants_weight and not skips_parameters:
            by_weight = (gradient * (h - mean) * inverse).sum(over_channels(h)).to(weight)
        if wants_bias and not skips_parameters:
            by_bias = gradient.sum(over_channels(h)).to(weight)
        return None, by_h, None, None, by_weight, by_bias, None, None


def is_frozen_output(node: Any) -> bool:
    """Return whether a node of a graph lets the statistics of its layer be frozen."""
    return getattr(node, "_forward_cls", None) is _FreezableOutput


def _freezable(
    output: Tensor,
    h: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    normalization: Callable[[Tensor], tuple[Tensor, Tensor]],
    owns: bool,
    thread: int,
) -> Tensor:
    """Wrap a normalized batch so that its derivative can bypass the statistics, which `normalization` returns."""
    if not output.requires_grad:
        return output
    # Statistics with their graph: in the gradient of a penalty they are functions of the weights.
    if h.dtype in (torch.float16, torch.bfloat16):
        at_least_single = h.float()
    else:
        at_least_single = h
    statistics = normalization(at_least_single)
    # the parameters as torch functions receive them, possibly substitutes
    scale_and_shift = [
        None if parameter is None else parameter.view_as(parameter) for parameter in (weight, bias)
    ]
    result: Any = _FreezableOutput.apply(output, h, *statistics, *scale_and_shift, owns, thread)
    return result


def _freezable_hook(
    thread: int,
    module: Any,
    arguments: tuple[Any, ...],
    keywords: Mapping[str, Any],
    output: Tensor,
) -> Tensor:
    """Let the statistics of a layer that only normalizes be frozen (hook)."""
    (h,) = arguments or keywords.values()
    # scale and shift are parameters of the layer, not computed from other tensors: nothing depends on their derivatives
    owns = all(name in module._parameters for name in ("weight", "bias"))
    scale, shift = module.weight, module.bias
    if isinstance(module, Normalizing):
        normalization = module.normalization
    else:
        normalization = partial(broadcast_statistics, eps=module.eps)
    return _freezable(output, h, scale, shift, normalization, owns, thread)


_SIGNATURE = inspect.signature(F.batch_norm)


class _FreezableCalls(TorchFunctionMode):
    """Context in which the statistics of calls of `F.batch_norm` can be frozen."""

    def __init__(self, module: nn.Module, thread: int) -> None:
        super().__init__()
        self.module = module
        self.thread = thread
        self.calls = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call `func`; the derivative of a batch norm can bypass its statistics."""
        output = func(*args, **(kwargs or {}))
        if func is not F.batch_norm:
            return output
        self.calls += 1
        call = _SIGNATURE.bind(*args, **(kwargs or {}))
        call.apply_defaults()
        h, _, _, weight, bias, training, _, eps = call.arguments.values()
        if not training:
            return output
        own = self.module._parameters
        owns = weight is own.get("weight") and bias is own.get("bias")
        normalization = partial(broadcast_statistics, eps=eps)
        return _freezable(output, h, weight, bias, normalization, owns, self.thread)


@contextmanager
def _freezable_calls(name: str, module: nn.Module, thread: int) -> Iterator[None]:
    """Let the statistics be frozen inside the forward function of a subclass, which may do more than normalize."""
    original = module.forward

    def forward(*arguments: Any, **keywords: Any) -> Any:
        with _FreezableCalls(module, thread) as mode:
            output = original(*arguments, **keywords)
        if not mode.calls:
            raise ReplaceLayer(
                "BatchNorm must compute its output by torch.nn.functional.batch_norm where gradients are taken at "
                f"constant statistics of the batch; the forward function of {type(module).__name__} '{name}' does not "
                "call it. Call it there, or put the layer into evaluation mode (module.eval())."
            )
        return output

    with patch_forwards({module: forward}):
        yield


@contextmanager
def allow_frozen_stats(modules: Mapping[str, nn.Module]) -> Iterator[None]:
    """Let batch statistics be frozen in backward passes through the body's graph.

    Raises:
        ReplaceLayer: The statistics of a layer cannot be frozen.
    """
    thread = threading.get_ident()
    hook = partial(_freezable_hook, thread)
    with ExitStack() as stack:
        for name, module in modules.items():
            if not uses_batch_statistics(module):
                continue
            is_declared = is_as_declared(module)
            is_hidden = isinstance(module, Normalizing | nn.SyncBatchNorm) and not is_declared
            if not module.training or is_hidden:
                # the statistics of the batch in evaluation mode, or of several processes, cannot be frozen
                check_no_batch_statistics({name: module})
            elif is_declared or normalizes_only(module):
                stack.callback(
                    module.register_forward_hook(hook, prepend=True, with_kwargs=True).remove
                )
            else:
                stack.enter_context(_freezable_calls(name, module, thread))
        yield
