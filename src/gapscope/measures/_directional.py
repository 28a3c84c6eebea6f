"""How outputs change along a direction in the weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from gapscope.gradients.backward import whole_gradient


def output_change(
    outputs: Float[Tensor, "n k"], parameters: Sequence[Tensor], direction: Sequence[Tensor]
) -> Float[Tensor, "n k"]:
    r"""Return $J v$, the derivative of the outputs along a direction v in the weights, without the Jacobian J.

    It is the derivative of $u^\top J v$ by u, where $u^\top J$ is one backward pass: two backward passes in all.
    """
    cotangent = torch.zeros_like(outputs, requires_grad=True)
    gradients = whole_gradient(outputs, parameters, cotangent, create_graph=True)
    along = torch.stack([(g * v).sum() for g, v in zip(gradients, direction, strict=True)]).sum()
    (change,) = torch.autograd.grad(along, cotangent, materialize_grads=True)
    return change.detach()
