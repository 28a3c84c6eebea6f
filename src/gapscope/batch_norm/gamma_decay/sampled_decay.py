"""Monte Carlo estimate of the gamma decay with all even orders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gapscope.batch_norm.gamma_decay.accumulators import SecondMoments
from gapscope.batch_norm.gamma_decay.curvature import normalized_input
from gapscope.batch_norm.gamma_decay.evaluation_data import EvaluationData
from gapscope.batch_norm.layers._statistics import per_channel
from gapscope.inspection.hooks import forward_hooks
from gapscope.inspection.outputs import checked_outputs
from gapscope.results.estimate import Estimate


def gaussian_sampler(noise: SecondMoments) -> Callable[[int, torch.Generator], Tensor]:
    """Return a sampler (n, generator) of Gaussian vectors (q, a) [n, 2C], float64."""
    if noise.rr.ndim == 1:
        # per channel: a = slope x + rest y with q = deviation x and independent standard normal x, y, so that
        # Cov(q, a) = deviation slope and Var(a) = slope^2 + rest^2
        deviation = noise.pp.clamp_min(0).sqrt()
        slope = torch.where(deviation > 0, noise.rp / deviation, 0.0)
        rest = (noise.rr - slope.square()).clamp_min(0).sqrt()

        def draw(n: int, generator: torch.Generator) -> Tensor:
            x, y = torch.randn(2, n, len(rest), generator=generator, dtype=torch.float64).to(rest.device)
            return torch.cat([deviation * x, slope * x + rest * y], 1)

        return draw
    covariance = torch.cat([torch.cat([noise.pp, noise.pr], 1), torch.cat([noise.rp, noise.rr], 1)], 0)
    values, vectors = torch.linalg.eigh(covariance)
    root = vectors * values.clamp_min(0).sqrt()  # not Cholesky: with fewer samples than 2C the covariance is singular

    def draw_all(n: int, generator: torch.Generator) -> Tensor:
        return torch.randn(n, len(root), generator=generator, dtype=torch.float64).to(root.device) @ root.T

    return draw_all


def _moving(statistics: Tensor) -> Callable[..., Tensor]:
    """Return a forward hook that applies batch statistics (q, a) to first order."""

    def add(name: str, layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        # gamma (1 - s) u + beta - gamma a with s = q / 2 to first order: the change is gamma (-q u / 2 - a)
        q, a = statistics.to(output.dtype)[..., None].chunk(2, 1)
        change = (-q / 2 * normalized_input(layer, inputs[0]) - a).view(output.shape)
        return output + (change if layer.weight is None else per_channel(layer.weight, output) * change)

    return add


def even_loss_excess(
    subject: EvaluationData, name: str, noise: SecondMoments, *, scale: float, draws: int, generator: torch.Generator
) -> Estimate:
    r"""Estimate $E[\ell(\delta) + \ell(-\delta)]/2 - \ell(0)$ under noise of batch statistics.

    The noise moves the layer's output by $\gamma(-\frac12 q u - a)$, its own for every sample and the same at all
    positions. To second order this is the decay with the Hessian of the loss itself; beyond it, it holds the kinks of
    ReLU networks and all higher even orders.

    Args:
        noise: Covariances of (q, a) for a batch of one sample.
        scale: Standard deviation of batch statistics over that of one sample.
    """
    network, loss, n = subject.network, subject.loss, len(subject.samples)
    source, means = gaussian_sampler(noise), []
    with torch.no_grad():
        for _ in range(draws):
            drawn = scale * source(n, generator)
            # the mean over +noise and -noise removes all odd orders exactly
            total = 0.0
            for part, x, y in subject.chunks():
                plain = loss(checked_outputs(network(x), len(x)), y).double()
                for statistics in (drawn[part], -drawn[part]):
                    with forward_hooks({name: subject.layers[name]}, _moving(statistics)):
                        total += float((loss(network(x), y).double() - plain).sum()) / 2
            means.append(total / n)
    values = torch.tensor(means, dtype=torch.float64)
    return Estimate(values.mean().item(), (values.std() / len(values) ** 0.5).item())
