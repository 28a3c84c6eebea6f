"""Derivatives of outputs by the inputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gapscope.base.errors import NotMeasurable
from gapscope.inspection.outputs import explain_torch_errors
from gapscope.inspection.restoring import preserve_state


def _check_constant(network: nn.Module, inputs: Tensor) -> None:
    """Raise unless the outputs are unchanged by other inputs."""
    with torch.no_grad(), preserve_state(network):
        network.eval()
        changed = inputs + torch.randn(inputs.shape, generator=torch.Generator().manual_seed(0)).to(inputs)
        if torch.equal(network(inputs), network(changed)):
            return
    raise NotMeasurable(
        "A derivative by the inputs must be visible to autograd; the outputs change with the inputs here, but their "
        "graph does not reach them. Look for detach or torch.no_grad on the way of the inputs in the forward pass."
    )


def input_gradient(
    network: nn.Module,
    outputs: Tensor,
    inputs: Tensor,
    cotangent: Tensor | None = None,
    *,
    create_graph: bool,
    retain_graph: bool | None = None,
) -> Tensor:
    """Return the derivative of a scalar or weighted outputs by the inputs.

    The network is evaluated at other inputs to confirm a missing derivative. `cotangent` weights the outputs.

    Raises:
        NotMeasurable: The outputs depend on the inputs, but their graph does not.
    """
    gradient = None
    if outputs.requires_grad:
        with explain_torch_errors():
            (gradient,) = torch.autograd.grad(
                outputs, inputs, cotangent, create_graph=create_graph, retain_graph=retain_graph, allow_unused=True
            )
    if gradient is None:
        _check_constant(network, inputs.detach())
        gradient = torch.zeros_like(inputs)
        return gradient + 0 * outputs.sum() if create_graph else gradient
    return gradient
