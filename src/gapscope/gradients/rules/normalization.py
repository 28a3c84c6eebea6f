"""Normalization layers whose statistics do not mix samples: scale and shift have small, explicit Jacobians."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from gapscope.gradients.contributions import Contribution, DenseJacobian
from gapscope.gradients.frozen_batch_stats import uses_batch_statistics
from gapscope.gradients.layer_rules import Call, Rule, layer_rule


def _scale_and_shift(
    call: Call, gradient: Float[Tensor, "c n *output"], normalized: Callable[[], Tensor], kept: list[int]
) -> list[Contribution]:
    """Sum g * normalized input (scale) and g (shift) over the dimensions that are not in `kept`."""
    contributions: list[Contribution] = []
    summed = [dim for dim in range(2, gradient.ndim) if dim not in kept]
    for name, parameter in call.parameters.items():
        values = gradient * normalized() if name == "weight" else gradient
        values = values.sum(summed) if summed else values
        contributions.append(DenseJacobian((parameter,), values.flatten(2)))
    return contributions


@layer_rule(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
def batch_norm(call: Call, gradient: Float[Tensor, "c n channels *space"]) -> list[Contribution]:
    """BatchNorm with running statistics, or with constant batch statistics."""
    module = call.module

    def normalized() -> Tensor:
        if uses_batch_statistics(module):
            return F.batch_norm(call.inputs, None, None, training=True, eps=module.eps)
        shape = (-1,) + (1,) * (gradient.ndim - 3)
        scale = torch.rsqrt(module.running_var + module.eps).view(shape)
        return (call.inputs - module.running_mean.view(shape)) * scale

    return _scale_and_shift(call, gradient, normalized, kept=[2])


@layer_rule(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
def instance_norm(call: Call, gradient: Float[Tensor, "c n channels *space"]) -> list[Contribution]:
    """InstanceNorm with each sample's statistics, or running statistics in evaluation mode."""
    module = call.module
    running = module.track_running_stats and not module.training

    def normalized() -> Tensor:
        if running:
            return F.instance_norm(
                call.inputs, module.running_mean, module.running_var, use_input_stats=False, eps=module.eps
            )
        return F.instance_norm(call.inputs, eps=module.eps)

    return _scale_and_shift(call, gradient, normalized, kept=[2])


@layer_rule(nn.GroupNorm)
def group_norm(call: Call, gradient: Float[Tensor, "c n channels *space"]) -> list[Contribution]:
    """GroupNorm."""
    module = call.module
    return _scale_and_shift(
        call, gradient, lambda: F.group_norm(call.inputs, module.num_groups, eps=module.eps), kept=[2]
    )


def _over_last_dimensions(normalize: Callable[[Any, Tensor], Tensor]) -> Rule:
    def rule(call: Call, gradient: Float[Tensor, "c n *output"]) -> list[Contribution]:
        dims = len(call.module.normalized_shape)
        kept = list(range(gradient.ndim - dims, gradient.ndim))
        return _scale_and_shift(call, gradient, lambda: normalize(call.module, call.inputs), kept)

    return rule


layer_rule(nn.LayerNorm, features_last=True)(
    _over_last_dimensions(lambda module, x: F.layer_norm(x, module.normalized_shape, eps=module.eps))
)
layer_rule(nn.RMSNorm, features_last=True)(
    _over_last_dimensions(lambda module, x: F.rms_norm(x, module.normalized_shape, eps=module.eps))
)
