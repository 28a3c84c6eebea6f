"""Gradients of the loss by the weights: of the mean, and squared norms per sample."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gapscope.base.samples import Samples, slices
from gapscope.gradients.recording import record_forward
from gapscope.gradients.traces import square_norms
from gapscope.inspection.independence import check_sample_independence
from gapscope.inspection.losses import sample_losses
from gapscope.inspection.memoization import memoize
from gapscope.inspection.outputs import as_real, measurement_mode, prepare_inputs, samples_per_pass
from gapscope.measures._perturbed import loss_and_gradient, trainable

# largest number of per-sample gradients in memory
_AT_ONCE = 256


@memoize
def mean_gradient(network: nn.Module, x: Tensor, y: Tensor, *, chunk_size: int | None = None) -> Sequence[Tensor]:
    """Return the gradient of the mean loss by the trainable weights: one real tensor each."""
    with measurement_mode(network) as network:
        x, y = prepare_inputs(network, x), prepare_inputs(network, y)
        size = samples_per_pass(network, x, chunk_size, one_pass=network, at_most=256)
        _, gradient = loss_and_gradient(network, Samples(x, y), size, trainable(network))
    return [as_real(tensor) for tensor in gradient]


@memoize
def sample_square_norms(
    network: nn.Module, x: Tensor, y: Tensor, *, chunk_size: int | None = None
) -> Float[Tensor, " n"]:
    """Return the squared norms of the per-sample loss gradients, in float64 on the CPU."""

    def norms(x: Tensor, y: Tensor) -> Tensor:
        tape, outputs = record_forward(network, x)
        values = outputs.detach().requires_grad_()
        (by_outputs,) = torch.autograd.grad(sample_losses(values, y).sum(), values)
        return square_norms(tape, outputs, by_outputs[None]).double().cpu()

    with measurement_mode(network) as network:
        trainable(network)
        x, y = prepare_inputs(network, x), prepare_inputs(network, y)
        check_sample_independence(network, x)
        size = samples_per_pass(
            network, x, chunk_size, one_pass=lambda first: norms(first, y[: len(first)]), at_most=_AT_ONCE
        )
        return torch.cat([norms(x[part], y[part]) for part in slices(len(x), size)])
