r"""Per-sample Jacobians of convolutions as grouped convolutions.

The samples of a batch become groups of channels of one image; each group has a weight of its own, the sample's
Jacobian J_n. Then J_n is a convolution's derivative by its weight, $J_n a_{nt}$ the convolution itself, and
$J_n^\top g_{nt}$, folded back, its derivative by the input. Unfolding copies every input once per entry of a window,
which costs more than the multiplications.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from gapscope.gradients.layouts import Layout, Windows
from gapscope.gradients.second_derivatives import Settings, convolution_derivative

# Least windows per sample for which convolutions are faster than unfolding, in one thread of a CPU: to compute J_n, and
# to apply it. Unfolding copies little of few channels, and many channels need more windows.
_MIN_WINDOWS, _MIN_WINDOWS_TO_APPLY = 100, 25
# channels, by judgment
_MIN_CHANNELS, _MANY_CHANNELS = 4, 64


def is_faster(inputs: Tensor, layout: Layout, windows: int) -> bool:
    """Return whether grouped convolutions are faster than unfolding (never on a GPU)."""
    wide = isinstance(layout, Windows) and not all(size == 1 for size in layout.kernel_size)
    channels = inputs.shape[1]
    if channels < _MANY_CHANNELS:
        min_windows = _MIN_WINDOWS_TO_APPLY
    else:
        min_windows = _MIN_WINDOWS
    return (
        wide
        and channels >= _MIN_CHANNELS
        and windows >= min_windows
        and inputs.device.type == "cpu"
    )


def _as_groups(tensor: Float[Tensor, "n c *space"]) -> Float[Tensor, "1 nc *space"]:
    return tensor.contiguous().view(1, -1, *tensor.shape[2:])


def _images(gradients: Float[Tensor, "n o t"], inputs: Tensor, layout: Windows) -> Tensor:
    return gradients.unflatten(2, layout.n_windows(tuple(inputs.shape[2:])))


def _weights(jacobian: Float[Tensor, "n o k"], inputs: Tensor, layout: Windows) -> Tensor:
    return jacobian.reshape(-1, inputs.shape[1], *layout.kernel_size)


def _settings(n: int, layout: Windows) -> Settings:
    zeros = [0] * len(layout.kernel_size)
    return list(layout.stride), zeros, list(layout.dilation), False, zeros, n


def _backward(
    inputs: Tensor, gradients: Tensor, weights: Tensor, layout: Windows, *, by_inputs: bool
) -> Tensor:
    """Return the derivatives by the inputs, or by the weights."""
    images = _as_groups(_images(gradients, inputs, layout))
    settings = _settings(len(inputs), layout)
    return convolution_derivative(
        images, _as_groups(inputs), weights, settings, by_inputs=by_inputs
    )


def jacobians(
    inputs: Tensor, gradients: Float[Tensor, "n o t"], layout: Windows
) -> Float[Tensor, "n o k"]:
    r"""Return $\sum_t g_{nt} a_{nt}^\top$ over the windows, without a column of ones."""
    rows = gradients.shape[1]
    n = len(inputs)
    if gradients.shape[2] < _MIN_WINDOWS:
        return torch.bmm(gradients, replace(layout, ones=False).unfold(inputs).mT)
    weights = inputs.new_empty(n * rows, inputs.shape[1], *layout.kernel_size)
    return _backward(inputs, gradients, weights, layout, by_inputs=False).view(n, rows, -1)


def apply_jacobian(
    jacobian: Float[Tensor, "n o k"], inputs: Tensor, layout: Windows
) -> Float[Tensor, "n o t"]:
    """Apply J_n to every window of sample n."""
    n, rows, _ = jacobian.shape
    weights = _weights(jacobian, inputs, layout)
    images = torch.ops.aten.convolution(_as_groups(inputs), weights, None, *_settings(n, layout))
    return images.view(n, rows, -1)


def apply_transpose(
    jacobian: Float[Tensor, "n o k"],
    gradients: Float[Tensor, "n o t"],
    inputs: Tensor,
    layout: Windows,
) -> Tensor:
    """Apply the transpose of J_n to the derivatives of sample n, and fold to the inputs."""
    weights = _weights(jacobian, inputs, layout)
    return _backward(inputs, gradients, weights, layout, by_inputs=True).view_as(inputs)
