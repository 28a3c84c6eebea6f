"""Gradients of the loss, and networks at perturbed weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gapscope.base.errors import NotMeasurable
from gapscope.base.samples import Samples, slices
from gapscope.base.targets import IGNORED
from gapscope.gradients.recording import record_forward
from gapscope.gradients.traces import square_norms
from gapscope.inspection.independence import check_sample_independence
from gapscope.inspection.losses import default_loss, sample_losses
from gapscope.inspection.memoization import memoize
from gapscope.inspection.outputs import (
    BACKWARD_CHUNK_SIZE,
    as_real,
    checked_outputs,
    measurement_mode,
    network_outputs,
    prepare_inputs,
    samples_per_pass,
)
from gapscope.inspection.substitution import ParameterSubstitution

Tensors = Sequence[Tensor]


def trainable(network: nn.Module) -> list[nn.Parameter]:
    """Return the trainable parameters, or raise NotMeasurable."""
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    if not parameters:
        raise NotMeasurable("The network has no trainable parameters; this measure needs some.")
    return parameters


@contextmanager
def at_weights(network: nn.Module, values: Tensors) -> Iterator[list[nn.Parameter]]:
    """Substitute values for the trainable weights in the body (yields them as leaf tensors)."""
    parameters = trainable(network)
    leaves = [nn.Parameter(value) for value in values]
    with (
        ParameterSubstitution(zip(parameters, leaves, strict=True)) as substitution,
        substitution.install(network),
    ):
        yield leaves


def loss_share(part: Tensor, targets: Tensor) -> float:
    """Return the fraction that a part of the targets has of their mean loss: its samples, or positions with a label.

    Raises:
        NotMeasurable: No position has a label.
    """
    if targets.ndim < 2 or targets.is_floating_point() or targets.dtype == torch.bool:
        return len(part) / len(targets)
    n_labelled = int((targets != IGNORED).sum())
    if n_labelled == 0:
        raise NotMeasurable(
            "At least one position must have a label; all are -100. Pass labels of the positions."
        )
    return int((part != IGNORED).sum()) / n_labelled


def loss_and_gradient(
    network: nn.Module, samples: Samples, chunk_size: int, leaves: Tensors
) -> tuple[float, list[Tensor]]:
    """Return the mean loss over samples (in float64) and its gradient by the leaves."""
    mean_loss = 0.0
    mean_gradient = [torch.zeros_like(leaf) for leaf in leaves]
    for part in slices(len(samples), chunk_size):
        fraction = loss_share(samples.y[part], samples.y)
        if fraction == 0:
            continue
        outputs = checked_outputs(network(samples.inputs[part].clone()), part.stop - part.start)
        loss = fraction * default_loss(outputs, samples.y[part])
        gradients = torch.autograd.grad(loss, leaves, materialize_grads=True)
        for total, gradient in zip(mean_gradient, gradients, strict=True):
            total += gradient
        mean_loss += loss.item()
    return mean_loss, mean_gradient


def norm_of(tensors: Tensors) -> float:
    """Return the Euclidean norm of all tensors together, in float64."""
    return math.sqrt(
        sum(as_real(tensor.detach()).double().square().sum().item() for tensor in tensors)
    )


def samples_on_device(network: nn.Module, x: Tensor, y: Tensor) -> Samples:
    """Return inputs and targets on the network's device (the loss converts their type)."""
    if y.is_inference():
        targets = y.clone()
    else:
        targets = y.detach()
    inputs = prepare_inputs(network, x)
    return Samples(inputs, targets.to(inputs.device), notes=())


def batched_samples(
    network: nn.Module, x: Tensor, y: Tensor, chunk_size: int | None
) -> tuple[Samples, int]:
    """Return `samples_on_device`, and how many of them a pass with gradients takes."""
    samples = samples_on_device(network, x, y)
    size = samples_per_pass(
        network, samples.inputs, chunk_size, one_pass=network, at_most=BACKWARD_CHUNK_SIZE
    )
    return samples, size


def in_passes(
    compute: Callable[..., Tensor],
    network: nn.Module,
    chunk_size: int | None,
    *tensors: Tensor,
    at_most: int = BACKWARD_CHUNK_SIZE,
) -> Tensor:
    """Return the rows that a function computes from parts of tensors, the inputs first.

    Args:
        compute: Function of equally many rows of all tensors.
        network: The network that it passes the inputs to.
        chunk_size: Rows per call; None: as many as memory allows.
        tensors: Inputs [n, ...], and others of as many rows.
        at_most: Largest number of rows per call.
    """
    inputs, *others = tensors

    def one_pass(first: Tensor) -> Tensor:
        return compute(first, *(tensor[: len(first)] for tensor in others))

    size = samples_per_pass(network, inputs, chunk_size, one_pass=one_pass, at_most=at_most)
    parts = slices(len(inputs), size)
    return torch.cat([compute(*(tensor[part] for tensor in tensors)) for part in parts])


def loss_rise(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    steps: int,
    move: Callable[[Tensors, Tensors, Tensors], Tensors],
    chunk_size: int | None,
) -> float:
    """Return the largest rise of the loss along projected gradient ascent in the weights.

    Args:
        network: Network that returns raw outputs [n, K].
        x: Inputs [n, ...], usually the training data.
        y: Class labels [n] (int64) as they were trained on, or regression targets [n, K] if the measure accepts them.
        steps: Number of steps of the ascent.
        move: Function of deviations from the weights, the weights and the gradient; returns the next deviations.
        chunk_size: Samples per pass, without effect beyond rounding; None: as many as memory allows, up to a maximum.
    """
    with measurement_mode(network) as network:
        weights = [parameter.detach() for parameter in trainable(network)]
        samples, size = batched_samples(network, x, y, chunk_size)
        deviations: Tensors = [torch.zeros_like(value) for value in weights]
        losses = []
        for step in range(steps + 1):
            values = [
                value + deviation for value, deviation in zip(weights, deviations, strict=True)
            ]
            with at_weights(network, values) as leaves:
                if step == steps:  # the last point needs no gradient
                    outputs = network_outputs(network, samples.inputs, chunk_size=size).double()
                    losses.append(default_loss(outputs, samples.y).item())
                    break
                loss, gradient = loss_and_gradient(network, samples, size, leaves)
            losses.append(loss)
            deviations = move(deviations, weights, gradient)
    return max(losses) - losses[0]


@memoize
def mean_gradient(
    network: nn.Module, x: Tensor, y: Tensor, *, chunk_size: int | None = None
) -> Tensors:
    """Return the gradient of the mean loss, one real tensor per trainable weight."""
    with measurement_mode(network) as network:
        samples, size = batched_samples(network, x, y, chunk_size)
        _, gradient = loss_and_gradient(network, samples, size, trainable(network))
    return [as_real(tensor) for tensor in gradient]


@memoize
def sample_square_norms(
    network: nn.Module, x: Tensor, y: Tensor, *, chunk_size: int | None = None
) -> Float[Tensor, " n"]:
    """Return the squared norms of the per-sample loss gradients, in float64 on the CPU."""

    def norms(x: Tensor, y: Tensor) -> Tensor:
        tape, outputs = record_forward(network, x)
        values = outputs.detach().requires_grad_()
        # for positions the mean over the part is not its part of the mean
        scale = loss_share(y, samples.y) * len(samples) / len(y)
        (by_outputs,) = torch.autograd.grad(scale * sample_losses(values, y).sum(), values)
        return square_norms(tape, outputs, by_outputs[None]).double().cpu()

    with measurement_mode(network, passes_only=True) as network:
        trainable(network)
        samples = samples_on_device(network, x, y)
        check_sample_independence(network, samples.inputs)
        return in_passes(norms, network, chunk_size, samples.inputs, samples.y)
