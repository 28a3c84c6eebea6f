"""PAC-Bayes bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from jaxtyping import Int, Shaped
from torch import Tensor, nn

from gapscope.measures._perturbed import (
    STREAM,
    deviations_from,
    magnitude_bound,
    noise_tolerance,
    norm_of,
    trainable,
)
from gapscope.measures.distance_from_initialization import distance_from_initialization
from gapscope.measures.registry import Sampling, register_measure
from gapscope.results.estimate import Estimate


@register_measure(
    "pacbayes_flatness",
    title="sensitivity of the accuracy to noise on the weights",
    needs=("inputs", "labels"),
    units="1 / squared weight units",
    direction="lower",
    aggregation="of the accuracy, a mean over samples and draws",
    cost="up to 15 forward passes a draw",
    cost_class="many",
    default=False,
    invariances=("unit permutation", "head shift"),
    oracle="closed form of a linear network",
    cross_checks=("robust-generalization-measures",),
    sampling=Sampling("whole", 256, lambda k: 75),
    stream=STREAM,
    reference="Jiang et al. 2020 (arXiv:1912.02178), eq. 53; Neyshabur et al. 2017 (arXiv:1706.08947)",
)
def pacbayes_flatness(
    network: nn.Module,
    x: Shaped[Tensor, "n ..."],
    y: Int[Tensor, " n"],
    *,
    drop: float = 0.1,
    draws: int = 10,
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
) -> Estimate:
    r"""Flatness $1 / \sigma^2$ of the accuracy around the weights; estimated.

    $\sigma$ is the largest standard deviation of Gaussian noise on all trainable weights at which the accuracy, a
    mean over draws, drops by `drop`: found by bisection in [0, 2], up to 15 steps or within 0.01 of the drop. It is
    near 2 where the accuracy never drops so far, as for a network at chance. Batch norm stays as it is, its
    statistics are not perturbed and its scales are weights like others. Noise of the same draws is used for every
    deviation, so that the search is one of a smooth function. The released code of the reference passes a variance
    where torch expects a standard deviation; here it is the standard deviation.

    Args:
        drop: Drop of the accuracy that defines sigma.
        draws: Draws of the noise.
    """
    sigma = noise_tolerance(
        "pacbayes_flatness", network, x, y, magnitude=False, drop=drop, draws=draws, generator=generator,
        chunk_size=chunk_size,
    )  # fmt: skip
    return Estimate(1 / sigma**2)


@register_measure(
    "pacbayes_norm",
    title="size of the weights in units of the noise that they bear",
    needs=("inputs", "labels"),
    units="nats",
    direction="lower",
    aggregation="sum over all trainable weights",
    cost="up to 15 forward passes a draw",
    cost_class="many",
    default=False,
    oracle="closed form of a linear network",
    cross_checks=("robust-generalization-measures",),
    sampling=Sampling("whole", 256, lambda k: 75),
    stream=STREAM,
    reference="Jiang et al. 2020 (arXiv:1912.02178), eq. 49; Neyshabur et al. 2017 (arXiv:1706.08947)",
)
def pacbayes_norm(
    network: nn.Module,
    x: Shaped[Tensor, "n ..."],
    y: Int[Tensor, " n"],
    *,
    drop: float = 0.1,
    draws: int = 10,
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
) -> Estimate:
    r"""PAC-Bayes bound around the origin, $\frac{\lVert\theta\rVert^2}{4\sigma^2} + \log\frac n\sigma + 10$.

    $\sigma$ is the largest standard deviation of Gaussian noise on all trainable weights at which the accuracy, a
    mean over draws, drops by `drop`: found by bisection in [0, 2], up to 15 steps or within 0.01 of the drop. It is
    near 2 where the accuracy never drops so far, as for a network at chance. Batch norm stays as it is, its
    statistics are not perturbed and its scales are weights like others. Dziugaite et al. report $\sqrt{\cdot / n}$.

    Args:
        drop: Drop of the accuracy that defines sigma.
        draws: Draws of the noise.
    """
    sigma = noise_tolerance(
        "pacbayes_norm", network, x, y, magnitude=False, drop=drop, draws=draws, generator=generator,
        chunk_size=chunk_size,
    )  # fmt: skip
    squares = norm_of(trainable(network)) ** 2
    return Estimate(squares / (4 * sigma**2) + math.log(len(x) / sigma) + 10)


@register_measure(
    "pacbayes_distance",
    title="how far the weights moved in units of the noise that they bear",
    needs=("inputs", "labels", "initial"),
    units="nats",
    direction="lower",
    aggregation="sum over all trainable weights",
    cost="up to 15 forward passes a draw",
    cost_class="many",
    default=False,
    oracle="closed form of a linear network",
    cross_checks=("robust-generalization-measures",),
    sampling=Sampling("whole", 256, lambda k: 75),
    stream=STREAM,
    reference="Jiang et al. 2020 (arXiv:1912.02178), eq. 48; Neyshabur et al. 2017 (arXiv:1706.08947)",
)
def pacbayes_distance(
    network: nn.Module,
    x: Shaped[Tensor, "n ..."],
    y: Int[Tensor, " n"],
    *,
    initial_state: Mapping[str, Tensor],
    drop: float = 0.1,
    draws: int = 10,
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
) -> Estimate:
    r"""PAC-Bayes bound around the initial weights, in nats.

    .. math:: \frac{\lVert\theta - \theta_0\rVert^2}{4\sigma^2} + \log\frac n\sigma + 10

    $\sigma$ is the largest standard deviation of Gaussian noise on all trainable weights at which the accuracy, a
    mean over draws, drops by `drop`: found by bisection in [0, 2], up to 15 steps or within 0.01 of the drop. It is
    near 2 where the accuracy never drops so far, as for a network at chance. Batch norm stays as it is, its
    statistics are not perturbed and its scales are weights like others. Dziugaite et al. report $\sqrt{\cdot / n}$.

    Args:
        drop: Drop of the accuracy that defines sigma.
        draws: Draws of the noise.

    Raises:
        InvalidInput: An option is out of range, or `initial_state` is of another network.
    """
    sigma = noise_tolerance(
        "pacbayes_distance", network, x, y, magnitude=False, drop=drop, draws=draws, generator=generator,
        chunk_size=chunk_size,
    )  # fmt: skip
    distance = distance_from_initialization(network, initial_state=initial_state)
    return Estimate(distance**2 / (4 * sigma**2) + math.log(len(x) / sigma) + 10)


@register_measure(
    "pacbayes_magnitude_flatness",
    title="sensitivity of the accuracy to noise in proportion to the weights",
    needs=("inputs", "labels"),
    units="1",
    direction="lower",
    aggregation="of the accuracy, a mean over samples and draws",
    cost="up to 15 forward passes a draw",
    cost_class="many",
    default=False,
    invariances=("layer rescaling", "unit permutation"),
    oracle="closed form of a linear network",
    cross_checks=("robust-generalization-measures",),
    sampling=Sampling("whole", 256, lambda k: 75),
    stream=STREAM,
    reference="Jiang et al. 2020 (arXiv:1912.02178), eq. 61; Neyshabur et al. 2017 (arXiv:1706.08947)",
)
def pacbayes_magnitude_flatness(
    network: nn.Module,
    x: Shaped[Tensor, "n ..."],
    y: Int[Tensor, " n"],
    *,
    drop: float = 0.1,
    draws: int = 10,
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
) -> Estimate:
    r"""Flatness $1 / \sigma'^2$ under noise in proportion to the weights; estimated.

    $\sigma'$ is the largest factor such that Gaussian noise of standard deviation $\sqrt{\sigma'^2 \theta_i^2 +
    \epsilon^2}$, $\epsilon = 0.001$, on every trainable weight lets the accuracy, a mean over draws, drop by `drop`:
    found by bisection in [0, 2], up to 15 steps or within 0.01 of the drop. Batch norm stays as it is, its statistics
    are not perturbed and its scales are weights like others.

    Args:
        drop: Drop of the accuracy that defines sigma'.
        draws: Draws of the noise.
    """
    factor = noise_tolerance(
        "pacbayes_magnitude_flatness", network, x, y, magnitude=True, drop=drop, draws=draws, generator=generator,
        chunk_size=chunk_size,
    )  # fmt: skip
    return Estimate(1 / factor**2)


@register_measure(
    "pacbayes_magnitude_norm",
    title="size of the weights in units of the noise in proportion to them that they bear",
    needs=("inputs", "labels", "initial"),
    units="nats",
    direction="lower",
    aggregation="sum over all trainable weights",
    cost="up to 15 forward passes a draw",
    cost_class="many",
    default=False,
    oracle="closed form of a linear network",
    cross_checks=("robust-generalization-measures",),
    sampling=Sampling("whole", 256, lambda k: 75),
    stream=STREAM,
    reference="Jiang et al. 2020 (arXiv:1912.02178), eq. 57; Neyshabur et al. 2017 (arXiv:1706.08947)",
)
def pacbayes_magnitude_norm(
    network: nn.Module,
    x: Shaped[Tensor, "n ..."],
    y: Int[Tensor, " n"],
    *,
    initial_state: Mapping[str, Tensor],
    drop: float = 0.1,
    draws: int = 10,
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
) -> Estimate:
    r"""PAC-Bayes bound with noise in units of the weights, around the origin.

    .. math:: \frac14 \sum_{i=1}^k \log\frac{\epsilon^2 + (\sigma'^2 + 1) \lVert\theta\rVert^2 / k}
              {\epsilon^2 + \sigma'^2 (\theta_i - \theta_{0,i})^2} + \log\frac n{\sigma'} + 10

    $\sigma'$ is the largest factor such that Gaussian noise of standard deviation $\sqrt{\sigma'^2 \theta_i^2 +
    \epsilon^2}$, $\epsilon = 0.001$, on every trainable weight lets the accuracy, a mean over draws, drop by `drop`:
    found by bisection in [0, 2], up to 15 steps or within 0.01 of the drop. Batch norm stays as it is, its statistics
    are not perturbed and its scales are weights like others. Dziugaite et al. report $\sqrt{\cdot / n}$.

    Args:
        drop: Drop of the accuracy that defines sigma'.
        draws: Draws of the noise.

    Raises:
        InvalidInput: An option is out of range, or `initial_state` is of another network.
    """
    factor = noise_tolerance(
        "pacbayes_magnitude_norm", network, x, y, magnitude=True, drop=drop, draws=draws, generator=generator,
        chunk_size=chunk_size,
    )  # fmt: skip
    own = trainable(network)
    moved = deviations_from(network, initial_state)
    return Estimate(magnitude_bound(moved, norm_of(own) ** 2, factor, len(x)))


@register_measure(
    "pacbayes_magnitude_distance",
    title="how far the weights moved in units of the noise in proportion to them",
    needs=("inputs", "labels", "initial"),
    units="nats",
    direction="lower",
    aggregation="sum over all trainable weights",
    cost="up to 15 forward passes a draw",
    cost_class="many",
    default=False,
    oracle="closed form of a linear network",
    cross_checks=("robust-generalization-measures",),
    sampling=Sampling("whole", 256, lambda k: 75),
    stream=STREAM,
    reference="Jiang et al. 2020 (arXiv:1912.02178), eq. 56; Neyshabur et al. 2017 (arXiv:1706.08947)",
)
def pacbayes_magnitude_distance(
    network: nn.Module,
    x: Shaped[Tensor, "n ..."],
    y: Int[Tensor, " n"],
    *,
    initial_state: Mapping[str, Tensor],
    drop: float = 0.1,
    draws: int = 10,
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
) -> Estimate:
    r"""PAC-Bayes bound with noise in units of the weights, around the initial weights.

    .. math:: \frac14 \sum_{i=1}^k \log\frac{\epsilon^2 + (\sigma'^2 + 1) \lVert\theta - \theta_0\rVert^2 / k}
              {\epsilon^2 + \sigma'^2 (\theta_i - \theta_{0,i})^2} + \log\frac n{\sigma'} + 10

    $\sigma'$ is the largest factor such that Gaussian noise of standard deviation $\sqrt{\sigma'^2 \theta_i^2 +
    \epsilon^2}$, $\epsilon = 0.001$, on every trainable weight lets the accuracy, a mean over draws, drop by `drop`:
    found by bisection in [0, 2], up to 15 steps or within 0.01 of the drop. Batch norm stays as it is, its statistics
    are not perturbed and its scales are weights like others. Dziugaite et al. report $\sqrt{\cdot / n}$.

    Args:
        drop: Drop of the accuracy that defines sigma'.
        draws: Draws of the noise.

    Raises:
        InvalidInput: An option is out of range, or `initial_state` is of another network.
    """
    factor = noise_tolerance(
        "pacbayes_magnitude_distance", network, x, y, magnitude=True, drop=drop, draws=draws, generator=generator,
        chunk_size=chunk_size,
    )  # fmt: skip
    moved = deviations_from(network, initial_state)
    return Estimate(magnitude_bound(moved, norm_of(moved) ** 2, factor, len(x)))
