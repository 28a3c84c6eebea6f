"""Flatness under Gaussian noise in units of the weights."""

from __future__ import annotations

import torch
from jaxtyping import Int, Shaped
from torch import Tensor, nn

from gapscope.measures._perturbed import STREAM, noise_tolerance
from gapscope.measures.registry import Sampling, register_measure
from gapscope.results.estimate import Estimate


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
        network: Classifier that returns logits [n, K].
        x: Inputs, the training data.
        y: Class labels.
        drop: Drop of the accuracy that defines sigma'.
        draws: Draws of the noise.
        generator: Source of the noise; None for the same at every call.
        chunk_size: Samples per pass, without effect beyond rounding; None for as many as memory allows.

    Returns:
        The flatness.

    Raises:
        InvalidInput: An option is out of range.
        NotMeasurable: The network has no trainable parameters.
    """
    factor = noise_tolerance(
        "pacbayes_magnitude_flatness", network, x, y, magnitude=True, drop=drop, draws=draws, generator=generator,
        chunk_size=chunk_size,
    )  # fmt: skip
    return Estimate(1 / factor**2)
