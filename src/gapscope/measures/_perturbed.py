"""A network at weights other than its own, which stay as they are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, NotMeasurable, check_range
from gapscope.base.random_streams import resolve_generator
from gapscope.base.samples import Samples, slices
from gapscope.inspection.losses import class_logits, default_loss
from gapscope.inspection.memoization import memoize
from gapscope.inspection.outputs import (
    as_real,
    check_labels,
    checked_outputs,
    measurement_mode,
    network_outputs,
    prepare_inputs,
    samples_per_pass,
)
from gapscope.inspection.substitution import ParameterSubstitution
from gapscope.measures._forward import check_labelled

# measures of this stream perturb by the same draws
STREAM = "perturbations"
# keeps weights near zero from being frozen, as in the reference
MAGNITUDE_EPSILON = 1e-3
# of the accuracy's drop, at which the search for a deviation ends
TOLERANCE = 0.01


def trainable(network: nn.Module) -> list[nn.Parameter]:
    """Return the trainable parameters, or say that there are none."""
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    if not parameters:
        raise NotMeasurable("Moving the weights needs trainable parameters; the network has none.")
    return parameters


@contextmanager
def at_weights(network: nn.Module, values: Sequence[Tensor]) -> Iterator[list[nn.Parameter]]:
    """Let the network have other trainable weights in the body."""
    parameters = trainable(network)
    leaves = [nn.Parameter(value) for value in values]
    with ParameterSubstitution(zip(parameters, leaves, strict=True)) as stand_in, stand_in.install(network):
        yield leaves


def loss_and_gradient(
    network: nn.Module, samples: Samples, chunk_size: int, leaves: Sequence[Tensor]
) -> tuple[float, list[Tensor]]:
    """Return the mean loss over samples (in float64) and its gradient by the leaves."""
    assert samples.targets is not None
    total, sums = 0.0, [torch.zeros_like(leaf) for leaf in leaves]
    for part in slices(len(samples), chunk_size):
        share = (part.stop - part.start) / len(samples)
        outputs = checked_outputs(network(samples.inputs[part].clone()), part.stop - part.start)
        loss = share * default_loss(outputs, samples.targets[part])
        for whole, gradient in zip(sums, torch.autograd.grad(loss, leaves, materialize_grads=True), strict=True):
            whole += gradient
        total += loss.item()
    return total, sums


def mean_loss(network: nn.Module, samples: Samples, chunk_size: int) -> float:
    """Return the mean loss over samples, in float64."""
    assert samples.targets is not None
    outputs = network_outputs(network, samples.inputs, chunk_size=chunk_size)
    return default_loss(outputs.double(), samples.targets).item()


def norm_of(tensors: Sequence[Tensor]) -> float:
    """Return the Euclidean norm of all tensors together, in float64."""
    return math.sqrt(sum(as_real(tensor.detach()).double().square().sum().item() for tensor in tensors))


def _ready(network: nn.Module, x: Tensor, y: Tensor) -> Samples:
    return Samples(
        prepare_inputs(network, x), prepare_inputs(network, y) if not y.is_floating_point() else y.to(x.device)
    )


def loss_rise(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    steps: int,
    move: Callable[[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]], Sequence[Tensor]],
    chunk_size: int | None,
) -> float:
    """Return by how much the loss rises, at the most, along gradient ascent in the weights."""
    with measurement_mode(network) as network:
        own = [parameter.detach() for parameter in trainable(network)]
        samples = _ready(network, x, y)
        size = samples_per_pass(network, samples.inputs, chunk_size, one_pass=network, at_most=256)
        deviations: Sequence[Tensor] = [torch.zeros_like(value) for value in own]
        losses = []
        for step in range(steps + 1):
            values = [value + deviation for value, deviation in zip(own, deviations, strict=True)]
            with at_weights(network, values) as leaves:
                if step == steps:
                    losses.append(mean_loss(network, samples, size))
                    break
                loss, gradient = loss_and_gradient(network, samples, size, leaves)
            losses.append(loss)
            deviations = move(deviations, own, gradient)
    return max(losses) - losses[0]


def _noisy(own: Sequence[Tensor], deviation: float, seed: int, *, magnitude: bool) -> list[Tensor]:
    """Weights plus Gaussian noise of a standard deviation, or of that times their own magnitude."""
    generator, values = torch.Generator().manual_seed(seed), []
    for value in own:
        noise = torch.randn(value.shape, generator=generator).to(value.device, value.dtype)
        scale = ((deviation * value).abs().square() + MAGNITUDE_EPSILON**2).sqrt() if magnitude else deviation
        values.append(value + scale * noise)
    return values


def noise_tolerance(
    measure: str,
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    magnitude: bool,
    drop: float,
    draws: int,
    generator: torch.Generator | None,
    chunk_size: int | None,
) -> float:
    """Return the standard deviation of Gaussian noise on the weights at which accuracy drops by `drop`, by bisection.

    Accuracy is a mean over draws, which are the same for every deviation. The search lies in [0, 2] and ends within
    0.01 of the drop, or after 15 halvings; where the accuracy never drops so far the result is close to 2.
    """
    check_range("drop", drop, 0, 1, low_open=True)
    check_range("draws", draws, 1)
    check_labelled(measure, x, y)
    return _searched_deviation(
        network, x, y, magnitude=magnitude, drop=drop, draws=draws, generator=generator, chunk_size=chunk_size
    )


def _certainly_exceeds(clean: float, noisy: Sequence[float], draws: int, drop: float) -> bool:
    """Whether the mean of all draws drops by more than asked for, whatever accuracies in [0, 1] are still to come."""
    highest = (sum(noisy) + draws - len(noisy)) / draws
    return clean - highest - drop >= TOLERANCE


# without the measure's name, so that all measures of one kind of noise share one search
@memoize
def _searched_deviation(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    magnitude: bool,
    drop: float,
    draws: int,
    generator: torch.Generator | None,
    chunk_size: int | None,
) -> float:
    source = resolve_generator(generator, STREAM)
    seeds = torch.randint(2**62, (draws,), generator=source, device=source.device).tolist()
    with measurement_mode(network) as network:
        own = [parameter.detach() for parameter in trainable(network)]
        samples = _ready(network, x, y)
        size = samples_per_pass(network, samples.inputs, chunk_size)

        def accuracy(values: Sequence[Tensor]) -> float:
            with at_weights(network, values):
                logits = class_logits(network_outputs(network, samples.inputs, chunk_size=size))
            check_labels(samples.targets, logits.shape[1])  # type: ignore[arg-type]
            return (logits.argmax(1) == samples.targets).double().mean().item()

        clean, low, high, middle = accuracy(own), 0.0, 2.0, 1.0
        for _ in range(15):
            middle, noisy = (low + high) / 2, list[float]()
            for seed in seeds:
                noisy.append(accuracy(_noisy(own, middle, seed, magnitude=magnitude)))
                if _certainly_exceeds(clean, noisy, draws, drop):
                    break
            excess = abs(clean - sum(noisy) / len(noisy)) - drop
            if abs(excess) < TOLERANCE:
                break
            low, high = (low, middle) if excess > 0 else (middle, high)
    return middle


def deviations_from(network: nn.Module, initial_state: Mapping[str, Tensor]) -> list[Tensor]:
    """Return the trainable weights minus their initial values, in float64; raise where `initial_state` does not fit."""
    found = []
    for name, parameter in network.named_parameters():
        if not parameter.requires_grad:
            continue
        if name not in initial_state or initial_state[name].shape != parameter.shape:
            raise InvalidInput(
                f"initial must be a state dictionary of the same network; '{name}' is "
                f"{'missing' if name not in initial_state else 'of another shape'}. "
                "Copy network.state_dict() before training."
            )
        start = as_real(initial_state[name].detach().to(parameter.device)).double()
        found.append(as_real(parameter.detach()).double() - start)
    return found


def magnitude_bound(moved: Sequence[Tensor], squares: float, factor: float, n: int) -> float:
    """Return the PAC-Bayes bound with noise in units of the weights."""
    count = sum(tensor.numel() for tensor in moved)
    epsilon = MAGNITUDE_EPSILON**2
    numerator = epsilon + (factor**2 + 1) * squares / count
    logs = [(numerator / (epsilon + factor**2 * tensor.square())).log().sum().item() for tensor in moved]
    return sum(logs) / 4 + math.log(n / factor) + 10
