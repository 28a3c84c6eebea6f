"""PAC-Bayes bound around the origin."""

from __future__ import annotations

import math

import torch
from jaxtyping import Int, Shaped
from torch import Tensor, nn

from gapscope.measures._perturbed import STREAM, noise_tolerance, norm_of, trainable
from gapscope.measures.registry import Sampling, register_measure
from gapscope.results.estimate import Estimate


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
        network: Classifier that returns logits [n, K].
        x: Inputs, the training data.
        y: Class labels.
        drop: Drop of the accuracy that defines sigma.
        draws: Draws of the noise.
        generator: Source of the noise; None for the same at every call.
        chunk_size: Samples per pass, without effect beyond rounding; None for as many as memory allows.

    Returns:
        The bound.

    Raises:
        InvalidInput: An option is out of range.
        NotMeasurable: The network has no trainable parameters.
    """
    sigma = noise_tolerance(
        "pacbayes_norm", network, x, y, magnitude=False, drop=drop, draws=draws, generator=generator,
        chunk_size=chunk_size,
    )  # fmt: skip
    squares = norm_of(trainable(network)) ** 2
    return Estimate(squares / (4 * sigma**2) + math.log(len(x) / sigma) + 10)
