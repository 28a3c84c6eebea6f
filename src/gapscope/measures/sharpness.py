"""Sharpness: rise of the loss around the weights, by projected gradient ascent.

Both are lower bounds: the largest loss among the points of s steps. Common parameters: see `gapscope.measures`.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from gapscope.base.errors import check_range
from gapscope.base.task import KINDS
from gapscope.measures._forward import Inputs, Targets
from gapscope.measures._gradients import Tensors, loss_rise, norm_of
from gapscope.measures.registry import LOSS_UNIT, Sampling, ScalarInfo, register_measure
from gapscope.results.estimate import Estimate

_register = partial(
    register_measure,
    numbers=ScalarInfo(LOSS_UNIT, "lower", "mean over samples"),
    cost_class="backward",
    default=False,
    tasks=KINDS,
    sampling=Sampling("whole", 256, lambda k: 15),
)


@_register(
    title="worst-case rise of the loss in a ball around the weights",
    reference="Keskar et al. 2017 (arXiv:1609.04836), Metric 2.1; step of Foret et al. 2021 (arXiv:2010.01412), eq. 2",
)
def worst_case_sharpness(
    network: nn.Module,
    x: Inputs,
    y: Targets,
    *,
    radius: float = 0.05,
    steps: int = 5,
    chunk_size: int | None = None,
) -> Estimate:
    r"""Compute the worst-case sharpness.

    $\max_{\lVert \delta \rVert_2 \le \rho} L(\theta + \delta) - L(\theta)$. Each step adds $\frac{2 \rho}{s + 1} \nabla
    L / \lVert \nabla L \rVert$ over all trainable weights and projects onto the ball. One step is the first-order worst
    case of sharpness-aware minimization. It depends on the scale of ReLU layers: see `adaptive_sharpness`.

    Args:
        network: Network that returns raw outputs [n, K]; logits if labels are needed.
        x: Inputs [n, ...], usually the training data.
        y: Class labels [n] (int64) as they were trained on, or regression targets [n, K] if the measure accepts them.
        radius: Radius rho of the ball in weight units.
        steps: Number s of ascent steps.
        chunk_size: Samples per pass, without effect beyond rounding; None: as many as memory allows, up to a maximum.
    """
    check_range("radius", radius, 0, low_open=True)
    check_range("steps", steps, 1)

    def move(deviations: Tensors, weights: Tensors, gradient: Tensors) -> list[Tensor]:
        norm = norm_of(gradient)
        if norm == 0:
            return list(deviations)
        step = 2 * radius / (steps + 1) / norm
        moved = [deviation + step * g for deviation, g in zip(deviations, gradient, strict=True)]
        scale = min(1.0, radius / norm_of(moved))
        return [scale * deviation for deviation in moved]

    return Estimate(loss_rise(network, x, y, steps, move, chunk_size))


@_register(
    title="worst-case rise of the loss under weight changes proportional to the weights",
    reference="Kwon et al. 2021 (arXiv:2102.11600), eq. 5; Andriushchenko et al. 2023 (arXiv:2302.07011), eq. 2",
)
def adaptive_sharpness(
    network: nn.Module,
    x: Inputs,
    y: Targets,
    *,
    radius: float = 0.01,
    steps: int = 5,
    chunk_size: int | None = None,
) -> Estimate:
    r"""Compute the adaptive sharpness.

    $\max_{|\delta_i| \le \rho |\theta_i|} L(\theta + \delta) - L(\theta)$. Each step adds $\frac{2 \rho}{s + 1}
    |\theta_i| \, \mathrm{sign}(\partial_i L)$ and projects onto the box. The scale of ReLU layers has no effect.

    Args:
        network: Network that returns raw outputs [n, K]; logits if labels are needed.
        x: Inputs [n, ...], usually the training data.
        y: Class labels [n] (int64) as they were trained on, or regression targets [n, K] if the measure accepts them.
        radius: Largest change rho of a weight, as a fraction of its magnitude.
        steps: Number s of ascent steps.
        chunk_size: Samples per pass, without effect beyond rounding; None: as many as memory allows, up to a maximum.
    """
    check_range("radius", radius, 0, low_open=True)
    check_range("steps", steps, 1)

    def move(deviations: Tensors, weights: Tensors, gradient: Tensors) -> list[Tensor]:
        moved = []
        for deviation, value, g in zip(deviations, weights, gradient, strict=True):
            limit = radius * value.abs()
            moved.append((deviation + 2 / (steps + 1) * limit * g.sgn()).clamp(-limit, limit))
        return moved

    return Estimate(loss_rise(network, x, y, steps, move, chunk_size))
