"""Linear layers with any leading dimensions."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from gapscope.gradients.contributions import Contribution, DenseJacobian, OuterProductFactors
from gapscope.gradients.layer_rules import Call, layer_rule
from gapscope.gradients.layouts import Tokens


@layer_rule(nn.Linear, NonDynamicallyQuantizableLinear, features_last=True)
def linear(call: Call, gradient: Float[Tensor, "c n *places o"]) -> list[Contribution]:
    r"""$J = \sum_t g_t (x_t, 1)^\top$ over all positions t of the middle dimensions."""
    c, n, *_, o = gradient.shape
    places = gradient.reshape(c, n, -1, o).transpose(2, 3)
    weight, bias = call.parameters.get("weight"), call.parameters.get("bias")
    if weight is None:
        assert bias is not None
        return [DenseJacobian((bias,), places.sum(3))]
    parameters = (weight,) if bias is None else (weight, bias)
    return [OuterProductFactors(parameters, call.inputs, places, Tokens(ones=bias is not None))]
