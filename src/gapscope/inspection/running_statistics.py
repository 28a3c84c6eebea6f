"""Layers that normalize by running statistics in evaluation mode, where they are linear maps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_STATISTICS = ("running_mean", "running_var")


def has_running_statistics(module: nn.Module) -> bool:
    """Return whether a layer normalizes by running statistics in evaluation mode.

    Such are BatchNorm and InstanceNorm of torch, the variants of `gapscope.batch_norm` and layers of other libraries
    with the names of torch (as `FrozenBatchNorm2d` of torchvision). One of the two statistics may be missing.
    """
    return hasattr(module, "eps") and any(
        isinstance(getattr(module, name, None), Tensor) for name in _STATISTICS
    )


def evaluation_map(layer: Any) -> tuple[Tensor, Tensor]:
    r"""Return scale and shift per channel of a layer `has_running_statistics`, in float64.

    In evaluation mode it is $s h + b$ with $s = \gamma / \sigma$, where $\sigma^2$ is the running variance plus `eps`,
    and $b = \beta - s \mu$ with the running mean $\mu$. Without a running variance $\sigma$ is 1; without a running
    mean $\mu$ is 0.
    """
    mean, variance, gamma, beta = (
        None if tensor is None else tensor.detach().double()
        for tensor in (*(getattr(layer, name) for name in _STATISTICS), layer.weight, layer.bias)
    )
    scale = torch.ones_like(variance if mean is None else mean)  # type: ignore[arg-type]
    if variance is not None:
        scale = (variance + layer.eps).rsqrt()
    if gamma is not None:
        scale = scale * gamma
    shift = torch.zeros_like(scale)
    if mean is not None:
        shift = -mean * scale
    return scale, shift if beta is None else shift + beta
