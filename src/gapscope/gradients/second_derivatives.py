r"""Derivatives of convolutions and group norms by their inputs, with fast derivatives of their own.

A penalty on gradients differentiates the derivative by the input, $d = J(h, W)^\top g$, by g, by W and by h. Torch does
it by functions made for derivatives of any order: a convolution with kernels as large as the image, or dozens of passes
over a group norm's input. Here each is one closed form, differentiable no further.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gapscope.gradients.frozen_batch_stats import over_channels, per_channel, skips_parameters

OptionalTensors = tuple[Tensor | None, ...]

# of the derivative by the output, the weight, and the input
Derivative = Callable[[Tensor, Tensor, Tensor], Tensor]
Settings = tuple[list[int], list[int], list[int], bool, list[int], int]


def convolution_derivative(
    gradient: Tensor, h: Tensor, weight: Tensor, settings: Settings, *, by_inputs: bool
) -> Tensor:
    """Return a convolution's derivative by the inputs, or by the weights."""
    mask = [by_inputs, not by_inputs, False]
    derivatives = torch.ops.aten.convolution_backward(gradient, h, weight, [0], *settings, mask)
    return derivatives[0 if by_inputs else 1]


class _ConvolutionByInput(torch.autograd.Function):
    """Linear in the derivative by the output and in the weight; of the inputs only the shape matters."""

    @staticmethod
    def forward(
        ctx: Any, gradient: Tensor, weight: Tensor, h: Tensor, settings: Settings
    ) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(gradient, weight)
        ctx.settings = settings
        return convolution_derivative(gradient, h, weight, settings, by_inputs=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_result: Tensor) -> OptionalTensors:  # type: ignore[override]
        gradient, weight = ctx.saved_tensors
        by_gradient = by_weight = None
        # the derivatives of the convolution itself, with `by_result` in the place of its input
        if ctx.needs_input_grad[0]:
            by_gradient = torch.ops.aten.convolution(by_result, weight, None, *ctx.settings)
        if ctx.needs_input_grad[1]:
            by_weight = convolution_derivative(
                gradient, by_result, weight, ctx.settings, by_inputs=False
            )
        return by_gradient, by_weight, None, None


class _GroupNormByInput(torch.autograd.Function):
    r"""With $g' = \gamma g$ and $z = r (h - \mu)$ per group, $d = r (g' - \overline{g'} - z\, \overline{g' z})$."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        gradient: Tensor,
        weight: Tensor,
        h: Tensor,
        mean: Tensor,
        inverse: Tensor,
        groups: int,
    ) -> Tensor:
        ctx.save_for_backward(gradient, weight, h, mean, inverse)
        n, channels = h.shape[:2]
        sizes = n, channels, h.numel() // (n * channels), groups
        backward = torch.ops.aten.native_group_norm_backward
        tensors = gradient.contiguous(), h.contiguous(), mean, inverse, weight
        return backward(*tensors, *sizes, [True, False, False])[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_result: Tensor) -> OptionalTensors:  # type: ignore[override]
        gradient, weight, h, mean, inverse = ctx.saved_tensors
        n, groups = mean.shape
        scale = per_channel(weight, h)

        def grouped(tensor: Tensor) -> Tensor:
            return tensor.reshape(n, groups, -1)

        def average(tensor: Tensor) -> Tensor:
            return tensor.mean(2, keepdim=True)

        r = inverse.unsqueeze(2)
        normalized = torch.addcmul(-r * mean.unsqueeze(2), grouped(h), r)
        v = grouped(by_result)
        g = grouped(gradient * scale)
        mean_v = average(v)
        mean_g = average(g)
        c = average(v * normalized)
        b = average(g * normalized)
        # d is linear in g' by a symmetric map
        projected = torch.addcmul(-r * mean_v, v, r).addcmul_(normalized, -r * c).view_as(h)
        by_gradient = projected * scale
        by_weight = (projected * gradient).sum(over_channels(h))
        # <v, d> = m r s with s = mean(v g') - mean v mean g' - b c: dr/dh = -r^2 z / m, and the derivative by z, which
        # is -r (b v + c g'), is mapped to h by r (1 - mean - z mean(z ...)).
        s = average(v * g) - mean_v * mean_g - b * c
        factor = -r.square()
        by_h = torch.addcmul(-factor * (b * mean_v + c * mean_g), v, factor * b)
        by_h.addcmul_(g, factor * c).addcmul_(normalized, factor * (s - 2 * b * c))
        return by_gradient, by_weight, by_h.view_as(h), None, None, None


class _Output(torch.autograd.Function):
    """Identity whose differentiable backward pass bypasses torch's."""

    @staticmethod
    def forward(
        ctx: Any, output: Tensor, h: Tensor, weight: Tensor, derivative: Derivative, thread: int
    ) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(h, weight)
        ctx.derivative = derivative
        ctx.thread = thread
        ctx.mark_dirty(output)  # returned without a copy
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> OptionalTensors:
        (gradient,) = gradients
        if not (torch.is_grad_enabled() and skips_parameters(ctx.thread)):
            return gradient, None, None, None, None
        h, weight = ctx.saved_tensors
        return None, ctx.derivative(gradient, weight, h), None, None, None


def bypassed(node: Any) -> Any:
    """Return the node of the layer's own operation, for the node of an output in `fast_second_derivatives`."""
    if getattr(node, "_forward_cls", None) is _Output:
        return node.next_functions[0][0]
    return node


def _derivative(node: Any) -> Derivative | None:
    """Return the derivative by the input for the node of a convolution or group norm."""
    if node.name() == "ConvolutionBackward0":
        lists = [
            list(getattr(node, f"_saved_{name}")) for name in ("stride", "padding", "dilation")
        ]
        settings: Any = (
            *lists,
            node._saved_transposed,
            list(node._saved_output_padding),
            node._saved_groups,
        )
        return lambda gradient, weight, h: _ConvolutionByInput.apply(
            gradient, weight, h.detach(), settings
        )
    if node.name() == "NativeGroupNormBackward0":
        mean = node._saved_result1
        inverse = node._saved_result2
        groups = node._saved_group
        return lambda gradient, weight, h: _GroupNormByInput.apply(
            gradient, weight, h, mean, inverse, groups
        )
    return None


def is_saved(saved: Tensor | None, tensor: Any) -> bool:
    """Return whether a node has saved this tensor."""
    return (
        saved is not None
        and isinstance(tensor, Tensor)
        and saved.data_ptr() == tensor.data_ptr()
        and saved.shape == tensor.shape
        and saved.stride() == tensor.stride()
    )


def _hook(
    thread: int, module: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any], output: Any
) -> Any:
    """Wrap the output, if it is that of the layer's operation on the argument with the module's weight (hook)."""
    h = next(iter((*arguments, *keywords.values())), None)
    weight = module.weight
    node = getattr(output, "grad_fn", None)
    if not isinstance(h, Tensor) or not h.requires_grad or weight is None or node is None:
        return output
    if not h.dtype == weight.dtype == output.dtype or not h.is_floating_point():
        return output
    # with hooks of saved tensors, a checkpoint counts the tensors that a pass saves
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:  # type: ignore[attr-defined]
        return output
    derivative = _derivative(node)
    if (
        derivative is None
        or not is_saved(node._saved_input, h)
        or not is_saved(node._saved_weight, weight)
    ):
        return output
    result: Any = _Output.apply(output, h, weight, derivative, thread)
    return result


@contextmanager
def fast_second_derivatives(modules: Mapping[str, nn.Module]) -> Iterator[None]:
    """Let derivatives by the inputs of convolutions and group norms in the body's graph be differentiated fast."""
    hook = partial(_hook, threading.get_ident())
    with ExitStack() as stack:
        for module in modules.values():
            if type(module) in (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.GroupNorm):
                stack.callback(
                    module.register_forward_hook(hook, prepend=True, with_kwargs=True).remove
                )
        yield
