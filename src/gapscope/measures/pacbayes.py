r"""PAC-Bayes bounds and flatness from the tolerated noise on the weights.

All four measures use the same quantity: sigma is the largest standard deviation of Gaussian noise on all trainable
weights at which the accuracy, a mean over `draws` noise samples, drops by at most `drop`. For noise proportional to the
weights it is the largest factor sigma' of noise with standard deviation $\sqrt{\sigma'^2 \theta_i^2 + \epsilon^2}$,
$\epsilon = 0.001$. Both result from a bisection in [0, 2], within 0.01 of the drop or after 15 steps. They are close to
2 if the accuracy never drops that far, as for a network at chance. Batch-norm scales are perturbed like other weights,
batch-norm statistics are not. The standard error, of the noise samples and of the end of the bisection, follows from
their accuracies and from the slope of the accuracy at sigma; it is unknown for one noise sample, and where the accuracy
does not fall. Dziugaite et al. 2020 report $\sqrt{\cdot / n}$ of the bounds.

Further common parameters:
    drop: Drop of the accuracy that defines sigma, in (0, 1).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from statistics import fmean, stdev

import torch
from torch import Tensor, nn

from gapscope.base.errors import check_range
from gapscope.base.random_streams import resolve_generator
from gapscope.base.targets import check_labels
from gapscope.base.task import class_logits, has_no_largest
from gapscope.inspection.memoization import memoize
from gapscope.inspection.outputs import measurement_mode, network_outputs, samples_per_pass
from gapscope.measures._forward import Inputs, Labels
from gapscope.measures._gradients import Tensors, at_weights, norm_of, samples_on_device, trainable
from gapscope.measures._weights import StateDict
from gapscope.measures.parameters import weight_differences
from gapscope.measures.registry import Sampling, ScalarInfo, register_measure
from gapscope.results.estimate import Estimate

# a common stream: the same noise samples for all, so that each bisection runs once
STREAM = "perturbations"
# so that weights near zero are perturbed too, as in the reference
MAGNITUDE_EPSILON = 1e-3
# distance from the drop at which the bisection ends
TOLERANCE = 0.01
# relative distance to a smaller deviation, for the slope of the accuracy there; by judgment
STEP = 0.2


def _perturb(weights: Tensors, deviation: float, seed: int, *, magnitude: bool) -> list[Tensor]:
    """Return the weights plus Gaussian noise, optionally proportional to their magnitude."""
    generator = torch.Generator().manual_seed(seed)
    values = []
    for weight in weights:
        noise = torch.randn(weight.shape, generator=generator).to(weight.device, weight.dtype)
        scale = deviation
        if magnitude:
            scale = ((deviation * weight).abs().square() + MAGNITUDE_EPSILON**2).sqrt()
        values.append(weight + scale * noise)
    return values


def _certainly_exceeds(clean: float, noisy: Sequence[float], draws: int, drop: float) -> bool:
    """Return whether the drop is exceeded even if all remaining noise samples have accuracy 1."""
    highest = (sum(noisy) + draws - len(noisy)) / draws
    return clean - highest - drop >= TOLERANCE


@memoize
def _noise_tolerance(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    magnitude: bool,
    drop: float,
    draws: int,
    generator: torch.Generator | None,
    chunk_size: int | None,
) -> Estimate:
    """Return sigma, or sigma' for noise proportional to the weights, by bisection."""
    check_range("drop", drop, 0, 1, low_open=True)
    check_range("draws", draws, 1)
    source = resolve_generator(generator, STREAM)
    # the same noise samples for every deviation, so that the accuracy is a smooth function of it
    seeds = torch.randint(2**62, (draws,), generator=source, device=source.device).tolist()
    with measurement_mode(network) as network:
        weights = [parameter.detach() for parameter in trainable(network)]
        samples = samples_on_device(network, x, y)
        size = samples_per_pass(network, samples.inputs, chunk_size)

        def accuracy(values: Tensors) -> float:
            with at_weights(network, values):
                logits = class_logits(network_outputs(network, samples.inputs, chunk_size=size))
            check_labels(samples.y, logits.shape[1])
            # outputs that large deviations made NaN predict nothing
            correct = (logits.argmax(1) == samples.y) & ~has_no_largest(logits)
            return correct.double().mean().item()

        def accuracies(deviation: float) -> Iterator[float]:
            for seed in seeds:
                yield accuracy(_perturb(weights, deviation, seed, magnitude=magnitude))

        clean = accuracy(weights)
        low = 0.0
        high = 2.0
        middle = 1.0
        for _ in range(15):
            middle = (low + high) / 2
            noisy = list[float]()
            for value in accuracies(middle):
                noisy.append(value)
                if _certainly_exceeds(clean, noisy, draws, drop):
                    break
            excess = abs(clean - sum(noisy) / len(noisy)) - drop
            if abs(excess) < TOLERANCE:
                break
            low, high = (low, middle) if excess > 0 else (middle, high)
        slope = (fmean(accuracies((1 - STEP) * middle)) - fmean(noisy)) / (STEP * middle)
    error = math.nan
    if len(noisy) > 1 and slope > 0:
        # the end of the bisection is anywhere within the tolerance
        error = math.hypot(stdev(noisy) / len(noisy) ** 0.5, TOLERANCE / 3**0.5) / slope
    return Estimate(middle, error)


def _flatness(sigma: Estimate) -> Estimate:
    """Return 1 / sigma^2, with its standard error to first order."""
    return Estimate(1 / sigma**2, 2 / sigma**3 * (sigma.standard_error or 0.0))


_register = partial(
    register_measure,
    labels=True,
    cost_class="many",
    default=False,
    sampling=Sampling("whole", 256, lambda k: 75),
    stream=STREAM,
)
_REFERENCE = (
    "Jiang et al. 2020 (arXiv:1912.02178), eq. {}; Neyshabur et al. 2017 (arXiv:1706.08947)"
)
_BOUND = ScalarInfo("nats", "lower", "sum over all trainable weights")


@_register(
    title="sensitivity of the accuracy to weight noise",
    numbers=ScalarInfo(
        "1 / squared weight units", "lower", "of the accuracy, a mean over samples and draws"
    ),
    reference=_REFERENCE.format(53),
)
def pacbayes_flatness(
    network: nn.Module,
    x: Inputs,
    y: Labels,
    *,
    drop: float = 0.1,
    draws: int = 10,
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
) -> Estimate:
    r"""Compute the flatness of the accuracy under noise on the weights (estimated).

    $1 / \sigma^2$ for the standard deviation $\sigma$. The released code of the reference passes a variance where torch
    expects a standard deviation.
    """
    return _flatness(_noise_tolerance(network, x, y, False, drop, draws, generator, chunk_size))


@_register(
    title="sensitivity of the accuracy to noise proportional to the weights",
    numbers=ScalarInfo("1", "lower", "of the accuracy, a mean over samples and draws"),
    reference=_REFERENCE.format(61),
)
def pacbayes_magnitude_flatness(
    network: nn.Module,
    x: Inputs,
    y: Labels,
    *,
    drop: float = 0.1,
    draws: int = 10,
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
) -> Estimate:
    r"""Compute the flatness under noise proportional to the weights, $1 / \sigma'^2$."""
    return _flatness(_noise_tolerance(network, x, y, True, drop, draws, generator, chunk_size))


def _bound(norm: float, sigma: Estimate, n: int) -> Estimate:
    """Return the bound of n samples from a norm of the weights and the tolerated noise."""
    value = norm**2 / (4 * sigma**2) + math.log(n / sigma) + 10
    return Estimate(value, (norm**2 / (2 * sigma**3) + 1 / sigma) * (sigma.standard_error or 0.0))


@_register(
    title="weight norm relative to the tolerated weight noise",
    numbers=_BOUND,
    reference=_REFERENCE.format(49),
)
def pacbayes_norm(
    network: nn.Module,
    x: Inputs,
    y: Labels,
    *,
    drop: float = 0.1,
    draws: int = 10,
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
) -> Estimate:
    r"""Compute the PAC-Bayes bound around the origin in nats (estimated).

    $\frac{\lVert\theta\rVert^2}{4\sigma^2} + \log\frac n\sigma + 10$
    """
    sigma = _noise_tolerance(network, x, y, False, drop, draws, generator, chunk_size)
    return _bound(norm_of(trainable(network)), sigma, len(x))


@_register(
    title="distance from the initial weights relative to the tolerated weight noise",
    numbers=_BOUND,
    reference=_REFERENCE.format(48),
)
def pacbayes_distance(
    network: nn.Module,
    x: Inputs,
    y: Labels,
    *,
    initial_state: StateDict,
    drop: float = 0.1,
    draws: int = 10,
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
) -> Estimate:
    r"""Compute the PAC-Bayes bound around the initial weights in nats (estimated).

    $\frac{\lVert\theta - \theta_0\rVert^2}{4\sigma^2} + \log\frac n\sigma + 10$
    """
    sigma = _noise_tolerance(network, x, y, False, drop, draws, generator, chunk_size)
    return _bound(norm_of(weight_differences(network, initial_state)), sigma, len(x))
