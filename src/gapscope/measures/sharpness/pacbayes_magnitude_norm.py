"""PAC-Bayes bound with noise in units of the weights, around the origin."""

from __future__ import annotations

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
from gapscope.measures.registry import Sampling, register_measure
from gapscope.results.estimate import Estimate


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
        network: Classifier that returns logits [n, K].
        x: Inputs, the training data.
        y: Class labels.
        initial_state: Its state dictionary before training.
        drop: Drop of the accuracy that defines sigma'.
        draws: Draws of the noise.
        generator: Source of the noise; None for the same at every call.
        chunk_size: Samples per pass, without effect beyond rounding; None for as many as memory allows.

    Returns:
        The bound.

    Raises:
        InvalidInput: An option is out of range, or `initial_state` is of another network.
        NotMeasurable: The network has no trainable parameters.
    """
    factor = noise_tolerance(
        "pacbayes_magnitude_norm", network, x, y, magnitude=True, drop=drop, draws=draws, generator=generator,
        chunk_size=chunk_size,
    )  # fmt: skip
    own = trainable(network)
    moved = deviations_from(network, initial_state)
    return Estimate(magnitude_bound(moved, norm_of(own) ** 2, factor, len(x)))
