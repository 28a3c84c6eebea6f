"""PReLU, the activation with a learned slope."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from gapscope.gradients.contributions import Contribution, DenseJacobian
from gapscope.gradients.layer_rules import Call, layer_rule


@layer_rule(nn.PReLU)
def prelu(call: Call, gradient: Float[Tensor, "c n *output"]) -> list[Contribution]:
    """Multiply by the negative part of the input, per channel (dimension 1) or summed."""
    weight = call.parameters["weight"]
    values = gradient * call.inputs.clamp(max=0)
    if weight.numel() == 1:
        return [DenseJacobian((weight,), values.flatten(2).sum(2, keepdim=True))]
    return [DenseJacobian((weight,), values.flatten(3).sum(3) if values.ndim > 3 else values)]
