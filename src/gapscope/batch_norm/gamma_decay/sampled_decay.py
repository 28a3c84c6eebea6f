"""Expected loss under Gaussian batch statistics, by drawing them: the gamma decay without its expansion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gapscope.base.records import Estimate
from gapscope.base.samples import Samples, slices
from gapscope.batch_norm.gamma_decay.curvature import normalised_input
from gapscope.batch_norm.layers._statistics import per_channel
from gapscope.inspection.hooks import hooked
from gapscope.inspection.losses import Loss
from gapscope.inspection.outputs import checked_outputs, ready_inputs


def noise_source(v2: Tensor, v1: Tensor, v12: Tensor, v21: Tensor) -> Callable[[int, torch.Generator], Tensor]:
    """Return a function that draws n Gaussian vectors (q, a), [n, 2C], of given covariance.

    Args:
        v2: Covariance of q, [C] for independent channels or [C, C].
        v1: Covariance of a.
        v12: Covariance of a with q (rows a).
        v21: Covariance of q with a (rows q).

    Returns:
        (n, generator) -> draws, in float64 on the device of the covariances.
    """
    if v1.ndim == 1:
        deviation = v2.clamp_min(0).sqrt()
        slope = torch.where(deviation > 0, v12 / deviation, 0.0)
        rest = (v1 - slope.square()).clamp_min(0).sqrt()

        def draw(n: int, generator: torch.Generator) -> Tensor:
            x, y = torch.randn(2, n, len(v1), generator=generator, dtype=torch.float64).to(v1.device)
            return torch.cat([deviation * x, slope * x + rest * y], 1)

        return draw
    values, vectors = torch.linalg.eigh(torch.cat([torch.cat([v2, v21], 1), torch.cat([v12, v1], 1)], 0))
    root = vectors * values.clamp_min(0).sqrt()

    def draw_all(n: int, generator: torch.Generator) -> Tensor:
        return torch.randn(n, len(root), generator=generator, dtype=torch.float64).to(root.device) @ root.T

    return draw_all


def _moving(statistics: Tensor) -> Callable[..., Tensor]:
    """Forward hook that adds to a layer's output what batch statistics (q, a) [n, 2C] change, to first order."""

    def add(name: str, layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        q, a = statistics.to(output.dtype)[..., None].chunk(2, 1)
        change = (-q / 2 * normalised_input(layer, inputs[0]) - a).view(output.shape)
        return output + (change if layer.weight is None else per_channel(layer.weight, output) * change)

    return add


def even_part(
    network: nn.Module, name: str, layer: Any, samples: Samples, targets: Tensor, loss: Loss,
    source: Callable[[int, torch.Generator], Tensor], scale: float, draws: int, chunk_size: int,
    generator: torch.Generator,
) -> Estimate:  # fmt: skip
    r"""Mean over samples of $\frac12 E[\ell(\delta) + \ell(-\delta)] - \ell(0)$ for the noise of batch statistics.

    The noise moves the layer's output by $\gamma(-\frac12 q u - a)$, its own for every sample and the same at all
    positions. To second order this is the decay with the Hessian of the loss itself; beyond it, it holds the kinks of
    ReLU networks and all higher even orders.

    Args:
        network: The network, in evaluation mode.
        name: Name of the layer.
        layer: The layer.
        samples: The population.
        targets: Its targets.
        loss: The loss.
        source: Draws (q, a) for a batch of one sample.
        scale: Standard deviation of batch statistics over that of a single sample.
        draws: Number of noises for every sample, at least 2.
        chunk_size: Samples a forward pass.
        generator: Source of the noise.

    Returns:
        The mean, with its standard error over draws.
    """
    means = []
    with torch.no_grad():
        for _ in range(draws):
            noise = scale * source(len(samples), generator)
            total = 0.0
            for part in slices(len(samples), chunk_size):
                x = ready_inputs(network, samples.inputs[part])
                y = targets[part].to(x.device)
                plain = loss(checked_outputs(network(x), len(x)), y).double()
                for statistics in (noise[part], -noise[part]):
                    with hooked({name: layer}, _moving(statistics)):
                        total += float((loss(network(x), y).double() - plain).sum()) / 2
            means.append(total / len(samples))
    values = torch.tensor(means, dtype=torch.float64)
    return Estimate(values.mean().item(), (values.std() / len(values) ** 0.5).item())
