r"""Derivatives of a chain of linear layers and elementwise functions, read off autograd's graph.

In $h_l = W_l\, a_{l-1} + b_l$, $a_l = \phi(h_l)$, the derivatives $g_l$ of C outputs by $h_l$ follow from those of the
next layer: $g_l = \phi'(h_l) \odot W_{l+1}^\top g_{l+1}$, one product for all outputs and samples. The graph of the
pass holds the inputs and the slopes: it is that of this pass, whatever was called before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gapscope.gradients.contributions import Contribution, DenseJacobian, OuterProductFactors
from gapscope.gradients.layer_rules import rule_of
from gapscope.gradients.layouts import Tokens
from gapscope.gradients.products import fast_products
from gapscope.gradients.rules import linear
from gapscope.inspection.known_layers import known_layers

# Nodes of functions of single numbers, of which the first have the second derivative 0 almost everywhere.
_PIECEWISE_LINEAR = frozenset(
    f"{name}Backward0" for name in ("Hardtanh", "LeakyRelu", "Mul", "NativeDropout", "Relu")
)
_SMOOTH = frozenset(
    f"{name}Backward0"
    for name in ("Celu", "Elu", "Gelu", "Hardswish", "Mish", "Sigmoid", "Silu", "Softplus", "Tanh")
)


def chain_of(network: nn.Module, inputs: Tensor) -> list[nn.Linear]:
    """Return the linear layers of a network whose pass on these inputs is a chain (empty if it is none)."""
    device = inputs.device.type
    if inputs.dtype not in (torch.float32, torch.float64) or device not in ("cpu", "cuda"):
        return []
    if torch.is_autocast_enabled(device) or torch._C._len_torch_function_stack():
        return []
    layers = known_layers(network)
    # a linear layer of several positions reshapes its input
    if not layers or not (inputs.ndim == 2 or isinstance(layers[0], nn.Flatten)):
        return []
    chain = [layer for layer in layers if isinstance(layer, nn.Linear)]
    uses_rule = all(
        rule_of(layer, {}) is linear and layer.weight.dtype == inputs.dtype for layer in chain
    )
    return chain if uses_rule else []


@dataclass(frozen=True)
class _Link:
    """A call of a linear layer in the graph."""

    inputs: Tensor | None  # [n, k], None if the weight is frozen
    weight: nn.Parameter | None  # None if it is frozen
    bias: nn.Parameter | None  # None if it is frozen or missing
    factor: Tensor | None  # the transposed weight [k, o], None if the input has no gradient
    functions: Sequence[Any]  # nodes of the functions of its result, the last first


def _parameter(node: Any, parameters: Mapping[int, nn.Parameter]) -> nn.Parameter | None:
    """Return the parameter of a node that accumulates gradients (KeyError for any other node)."""
    if node is None:
        return None
    return parameters[id(getattr(node, "variable", None))]


def _links(outputs: Tensor, parameters: Mapping[int, nn.Parameter], length: int) -> list[_Link]:
    """Return the calls of the linear layers, the last first.

    Raises:
        LookupError: The graph is not that of a chain.
    """
    links: list[_Link] = []
    functions: list[Any] = []
    node: Any = outputs.grad_fn
    while node is not None and len(links) < length:
        name = node.name()
        before = [following for following, _ in node.next_functions]
        if (name in _PIECEWISE_LINEAR or name in _SMOOTH) and not any(before[1:]):
            functions.append(node)
            node = before[0]
            continue
        if name == "AddmmBackward0" and node._saved_alpha == node._saved_beta == 1:
            bias = _parameter(before[0], parameters)
            inputs = node._saved_mat1
            weight = before[2]
            node, factor = before[1], node._saved_mat2
        elif name == "MmBackward0":
            bias = None
            inputs = node._saved_self
            weight = before[1]
            node, factor = before[0], node._saved_mat2
        else:
            raise LookupError(name)
        if weight is not None and weight.name() != "TBackward0":
            raise LookupError(weight.name())
        if weight is None:
            owner = None
        else:
            owner = _parameter(weight.next_functions[0][0], parameters)
        links.append(_Link(inputs, owner, bias, factor, functions))
        functions = []
    return links


def _slope(node: Any, like: Tensor) -> Tensor:
    """Return the derivative of an elementwise function."""
    result = node(torch.ones_like(like))
    slope: Tensor = result[0] if isinstance(result, tuple) else result
    return slope.detach() if node.name() in _PIECEWISE_LINEAR else slope


def _contribution(
    link: _Link, inputs: Tensor | None, gradients: Float[Tensor, "c n o"]
) -> list[Contribution]:
    if link.weight is None or inputs is None:
        if link.bias is None:
            return []
        return [DenseJacobian((link.bias,), gradients)]
    if link.bias is None:
        parameters = (link.weight,)
    else:
        parameters = (link.weight, link.bias)
    return [
        OuterProductFactors(
            parameters, inputs, gradients[..., None], Tokens(ones=link.bias is not None)
        )
    ]


def chain_contributions(
    outputs: Float[Tensor, "n k"],
    cotangents: Float[Tensor, "c n k"],
    parameters: Mapping[int, nn.Parameter],
    length: int,
    *,
    create_graph: bool,
) -> list[Contribution]:
    """Return the contribution of each linear layer, the last first.

    `parameters` are the trainable ones by identity, `length` the number of layers.

    Raises:
        LookupError: The graph is not that of a chain of these layers.
    """
    contributions: list[Contribution] = []
    g = cotangents.to(outputs.dtype)
    with torch.set_grad_enabled(create_graph), fast_products():
        for number, link in enumerate(_links(outputs, parameters, length)):
            for node in link.functions:
                slope = _slope(node, g[0])
                # a product that nothing else holds may be overwritten
                if create_graph or number == 0:
                    g = g * slope
                else:
                    g = g.mul_(slope)
            inputs = link.inputs
            if inputs is not None and not create_graph:
                inputs = inputs.detach()
            contributions += _contribution(link, inputs, g)
            if link.factor is None:
                break
            g = (g.reshape(-1, g.shape[2]) @ link.factor.T).view(*g.shape[:2], -1)
    return contributions
