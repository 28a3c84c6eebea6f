"""Layers that normalize by the statistics of a batch, how they declare it, and their maps in evaluation mode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gapscope.base.errors import ReplaceLayer


class Normalizing(nn.Module):
    r"""Base of layers that declare their normalization, $y = w (h - m) s + b$ with their `weight` and `bias`.

    Where gradients of individual samples are taken, m and s are constants.
    """

    @property
    def depends_on_batch(self) -> bool:
        """True if the next forward pass, or its gradient, uses the statistics of the batch."""
        raise NotImplementedError

    def normalization(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Return m and s of a batch, differentiable, in shapes that broadcast to it; nothing is tracked.

        Args:
            h: Batch [n, C, ...].
        """
        raise NotImplementedError


def uses_batch_statistics(module: nn.Module) -> bool:
    """Return whether a layer is known to normalize by the statistics of its batch."""
    if isinstance(module, Normalizing):
        return module.depends_on_batch
    return isinstance(module, _BatchNorm) and (module.training or module.running_mean is None)


def is_as_declared(module: nn.Module) -> bool:
    """Return whether a layer's call is the normalization that it declares, not that of a subclass that may do more."""
    if not isinstance(module, Normalizing) or "forward" in vars(module):
        return False
    calls, declares = (
        next(kind for kind in type(module).__mro__ if name in vars(kind))
        for name in ("forward", "normalization")
    )
    return issubclass(declares, calls)


def normalizes_only(module: nn.Module) -> bool:
    """Return whether a layer is a BatchNorm whose call is torch's own, not that of a subclass that may do more."""
    forward: Any = getattr(module.forward, "__func__", None)
    return isinstance(module, _BatchNorm) and forward in (
        _BatchNorm.forward,
        nn.SyncBatchNorm.forward,
    )


def check_no_batch_statistics(modules: Mapping[str, nn.Module]) -> None:
    """Raise ReplaceLayer if a known normalization mixes the samples of a batch."""
    for name, module in modules.items():
        if uses_batch_statistics(module):
            raise ReplaceLayer(
                f"{type(module).__name__} must not mix the samples of a batch where gradients of individual "
                f"samples are needed; '{name}' uses the statistics of the batch"
                f"{'' if module.training else ' in evaluation mode'}. Put it into evaluation mode with running "
                "statistics (module.eval()), or use GroupNorm."
            )


_STATISTICS = ("running_mean", "running_var")


def has_running_statistics(module: nn.Module) -> bool:
    """Return whether a layer normalizes by running statistics in evaluation mode.

    Such are BatchNorm and InstanceNorm of torch, the variants of `gapscope.batch_norm` and layers of other libraries
    with the names of torch (as `FrozenBatchNorm2d` of torchvision). One of the two statistics may be missing.
    """
    named = all(hasattr(module, name) for name in ("eps", "weight", "bias", *_STATISTICS))
    return named and any(getattr(module, name) is not None for name in _STATISTICS)


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
