"""Sums that determine one layer's gamma decay, and its Monte Carlo estimate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from gapscope.batch_norm.gamma_decay.curvature import (
    EvaluationData,
    arranged,
    mean_estimate,
    normalized_input,
    restored,
)
from gapscope.batch_norm.gamma_decay.layer_decay import LayerDecay, quadratic
from gapscope.batch_norm.layers._channel_norm import per_channel
from gapscope.inspection.hooks import forward_hooks
from gapscope.inspection.moments import ChannelMoments
from gapscope.inspection.outputs import BACKWARD_CHUNK_SIZE
from gapscope.inspection.sample_layout import SampleLayout
from gapscope.results.estimate import Estimate

Sampler = Callable[[int, torch.Generator], Tensor]
"""Function that returns noise (q, a) [n, 2C] of batches of one sample, float64, from n and a generator."""


class SecondMoments(NamedTuple):
    """Second moments of two values p, r per channel [C], or of channel pairs [C, C]."""

    # Noise: p is q, the mean square of u over the positions of a sample, and r is a, the mean: `rr` is V1, `pp` V2,
    # `rp` V12. Curvature: p is the derivative by gamma and r that by beta.
    pp: Tensor
    rr: Tensor
    pr: Tensor
    rp: Tensor

    def diagonals(self) -> SecondMoments:
        """Return the moments per channel, without pairs."""
        return SecondMoments(
            *(block.diagonal().clone() if block.ndim == 2 else block for block in self)
        )


def _products(values: Tensor, full: bool) -> Tensor:
    """Return sums over rows of pp, rr, pr: [3, C], or [2C, 2C] with channel pairs."""
    # rows of `values` are (p, r) [2C], so that the matrix is [[pp, pr], [rp, rr]] in blocks [C, C]
    if full:
        return values.T @ values
    p, r = values.chunk(2, 1)
    return torch.stack([(p * p).sum(0), (r * r).sum(0), (p * r).sum(0)])


def _blocks(products: Tensor) -> SecondMoments:
    if len(products) == 3:
        pp, rr, pr = products
        return SecondMoments(pp, rr, pr, pr)
    c = len(products) // 2
    return SecondMoments(products[:c, :c], products[c:, c:], products[:c, c:], products[c:, :c])


class _ProductSum:
    """Sum of `_products` of rows. Few rows are collected first: a sum reads and writes [2C, 2C] numbers."""

    def __init__(self, channels: int, full: bool, device: torch.device) -> None:
        shape = (2 * channels, 2 * channels) if full else (3, channels)
        self._sum = torch.zeros(shape, dtype=torch.float64, device=device)
        self._full = full
        self._rows: list[Tensor] = []

    def add(self, rows: Float[Tensor, "n c2"]) -> None:
        """Add rows (p, r)."""
        self._rows.append(rows)
        if sum(map(len, self._rows)) >= BACKWARD_CHUNK_SIZE:
            self.total()

    def total(self) -> Tensor:
        """Return the sum over all rows."""
        if self._rows:
            self._sum += _products(torch.cat(self._rows), self._full)
            self._rows.clear()
        return self._sum


class LayerAccumulator:
    r"""Accumulator of one layer's sums, and their conversion to its gamma decay.

    Batch statistics are means over a batch of $a_j$, the mean of u over the positions of sample j, and of $q_j$, the
    mean of $u^2$. Hence with $V_1 = \mathrm{Var}\, a_j$, $V_2 = \mathrm{Var}\, q_j$, $V_{12} = \mathrm{Cov}(a_j,
    q_j)$ over samples: $v_\mu = V_1/M$ exactly, and, from $\sigma_B^2/\sigma_P^2 - 1 = D$, $s = D/2 - D^2/8 + \dots$:
    $v_\sigma = V_2/4M$, $c = V_{12}/2M$, $E[\sigma_P/\sigma_B] - 1 = (V_1/2 + 3V_2/8)/M$, up to $O(1/M^2)$.
    Without positions these are $1/M$, $(\rho+2)/4M$, skewness/2M and $(3\rho+10)/8M$.

    `draws` is the number of Monte Carlo samples of the curvature, 1 if it is exact.
    """

    def __init__(self, channels: int, *, full: bool, draws: int, device: torch.device) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        self.full = full
        self.n = 0
        self.channels = channels
        self.noise = _ProductSum(channels, full, device)
        self.noise_sum = zeros(2 * channels)
        self.rows: list[Tensor] = []  # of the noise, up to one per row of its matrix
        self.gradient = zeros(2, channels)
        self.gradient_times_noise = zeros(2, channels)
        self.curvature = [_ProductSum(channels, full, device) for _ in range(draws)]
        self.moments = ChannelMoments(order=4)

    def add(
        self,
        u: Float[Tensor, "n c positions"],
        by_gamma: Float[Tensor, "n c"],
        by_beta: Float[Tensor, "n c"],
    ) -> None:
        """Add normalized inputs, and derivatives of each sample's loss by gamma and beta."""
        noise = torch.cat([u.square().mean(2), u.mean(2)], 1).double()  # [n, 2C]: q_j, a_j
        gradient = torch.cat([by_gamma, by_beta], 1).double()
        self.n += len(u)
        self.moments.update(u)
        if self.full and self.n <= 2 * self.channels:
            self.rows.append(noise)
        self.noise_sum += noise.sum(0)
        self.noise.add(noise)
        self.gradient += gradient.sum(0).view(2, -1)
        self.gradient_times_noise += (gradient * noise).sum(0).view(2, -1)

    def add_direction(self, draw: int, by_gamma: Tensor, by_beta: Tensor) -> None:
        """Add one direction whose squared derivatives sum to the curvature."""
        self.curvature[draw].add(torch.cat([by_gamma, by_beta], 1).double())

    def noise_covariance(self) -> SecondMoments:
        """Return covariances over samples of (q, a), the statistics of a batch of one sample."""
        # Cov(x, y) = E[x y] - E[x] E[y], here with one row of means
        mean = self.noise_sum[None] / self.n
        return _blocks(self.noise.total() / self.n - _products(mean, self.full))

    def sampler(self) -> Sampler:
        """Return a sampler (n, generator) of Gaussian noise of a batch of one sample, float64.

        From fewer samples than 2C, these are a root of the covariance: it takes no eigenvectors of 2C dimensions.
        """
        if not self.full or self.n > 2 * self.channels:
            return gaussian_sampler(self.noise_covariance())
        rows = torch.cat(self.rows)
        return _linear_sampler((rows - rows.mean(0)).T / self.n**0.5)

    def _first_order(self, noise: SecondMoments) -> Tensor:
        """Return the first-order part per unit of gamma, for a batch of one sample."""
        by_gamma, by_beta = self.gradient / self.n
        # gamma becomes gamma / sqrt(1 + D) and beta becomes beta - gamma a / sqrt(1 + D), with a and D means over
        # the batch and 1 + D = q - a^2. From E[D] = -E[a^2] = -V1/M and E[D^2] = V2/M follows
        # E[-D/2 + 3 D^2/8] = (V1/2 + 3 V2/8)/M for gamma, and E[-a (1 - D/2)] = E[a D]/2 = V12/2M for beta.
        first = (noise.rr / 2 + 3 * noise.pp / 8) * by_gamma + noise.rp / 2 * by_beta
        # A sample has the weight 1/M in the means of its own batch, which therefore covary with its gradient:
        # E[-D/2 dl/dgamma] = -Cov(q_j, dl_j/dgamma)/2M and E[-a dl/dbeta] = -Cov(a_j, dl_j/dbeta)/M.
        mean_q, mean_a = (self.noise_sum / self.n).view(2, -1)
        with_q, with_a = self.gradient_times_noise / self.n
        return first - (with_q - mean_q * by_gamma) / 2 - (with_a - mean_a * by_beta)

    def finish(self, name: str, gamma: Tensor, *, is_estimate: bool) -> LayerDecay:
        """Return the decay for a batch of one sample (batches of M have 1/M of it).

        If `is_estimate`, the curvature is a mean over Monte Carlo samples (standard error NaN for a single one).
        """
        noise = self.noise_covariance()
        curvatures = torch.stack([products.total() / self.n for products in self.curvature])
        couplings = torch.stack([_coupling(noise, _blocks(curvature)) for curvature in curvatures])
        coupling: Tensor | None = couplings.mean(0)
        zeta = coupling
        if self.full:
            zeta = coupling.diagonal().clone()
        else:
            coupling = None
        error = None
        if is_estimate:
            error = float("nan")
            decays = torch.stack([quadratic(gamma, z) for z in couplings])
            if len(decays) > 1:
                error = float(decays.std() / len(decays) ** 0.5)
        by_channel = noise.diagonals()
        curvature = _blocks(curvatures.mean(0)).diagonals()
        return LayerDecay(
            name=name,
            batch_size=1,
            gamma=gamma,
            zeta=zeta,
            coupling=coupling,
            first_order=gamma * self._first_order(by_channel),
            gradient_gamma=self.gradient[0] / self.n,
            gradient_beta=self.gradient[1] / self.n,
            mean_variance=by_channel.rr,
            std_variance=by_channel.pp / 4,
            covariance=by_channel.rp / 2,
            curvature_gamma=curvature.pp,
            curvature_beta=curvature.rr,
            curvature_cross=curvature.pr,
            excess_kurtosis=self.moments.excess_kurtosis,
            skewness=self.moments.skewness,
            standard_error=error,
        )


def _coupling(noise: SecondMoments, curvature: SecondMoments) -> Tensor:
    # To second order the loss rises by 1/2 E[delta^T H delta] with delta gamma_i = -gamma_i D_i / 2 and
    # delta beta_i = -gamma_i a_i, with Cov(D_i, D_k) = V2_ik/M: Z_ik is the coefficient of gamma_i gamma_k in it.
    by_gamma_and_beta = noise.pr * curvature.pr + noise.rp * curvature.rp
    return (noise.pp * curvature.pp / 4 + noise.rr * curvature.rr + by_gamma_and_beta / 2) / 2


def _linear_sampler(root: Tensor) -> Sampler:
    """Return a sampler of Gaussian vectors with covariance root root^T."""

    def sample(n: int, generator: torch.Generator) -> Tensor:
        normal = torch.randn(n, root.shape[1], generator=generator, dtype=torch.float64)
        return normal.to(root.device) @ root.T

    return sample


def gaussian_sampler(noise: SecondMoments) -> Sampler:
    """Return a sampler (n, generator) of Gaussian vectors (q, a) [n, 2C], float64."""
    if noise.rr.ndim == 1:
        # per channel: a = slope x + rest y with q = deviation x and independent standard normal x, y, so that
        # Cov(q, a) = deviation slope and Var(a) = slope^2 + rest^2
        deviation = noise.pp.clamp_min(0).sqrt()
        slope = torch.where(deviation > 0, noise.rp / deviation, 0.0)
        rest = (noise.rr - slope.square()).clamp_min(0).sqrt()

        def sample_channels(n: int, generator: torch.Generator) -> Tensor:
            normal = torch.randn(2, n, len(rest), generator=generator, dtype=torch.float64)
            x, y = normal.to(rest.device)
            return torch.cat([deviation * x, slope * x + rest * y], 1)

        return sample_channels
    upper = torch.cat([noise.pp, noise.pr], 1)
    lower = torch.cat([noise.rp, noise.rr], 1)
    values, vectors = torch.linalg.eigh(torch.cat([upper, lower]))
    # not Cholesky: the covariance may be singular
    return _linear_sampler(vectors * values.clamp_min(0).sqrt())


def _noise_hook(statistics: Tensor, layout: SampleLayout) -> Callable[..., Tensor]:
    """Return a forward hook that applies batch statistics (q, a) to first order."""

    def add(name: str, layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        # gamma (1 - s) u + beta - gamma a, where s = q / 2 to first order: the change is gamma (-q u / 2 - a)
        u = normalized_input(layer, arranged(inputs[0], layout, len(statistics)))
        q, a = statistics.to(output.dtype)[(..., *[None] * (u.ndim - 2))].chunk(2, 1)
        change = -q / 2 * u - a
        if layer.weight is not None:
            change = per_channel(layer.weight, change) * change
        return output + restored(change, layout)

    return add


def even_loss_excess(
    evaluation: EvaluationData,
    name: str,
    sample_noise: Sampler,
    baseline: Tensor,
    *,
    scale: float,
    draws: int,
    generator: torch.Generator,
) -> Estimate:
    r"""Estimate $E[\ell(\delta) + \ell(-\delta)]/2 - \ell(0)$ under noise of batch statistics."""
    # The noise changes the layer's output by gamma (-q u / 2 - a), independently per sample, equally at all positions.
    # To second order the excess is the decay with the Hessian of the loss itself; beyond that it includes the kinks of
    # ReLU networks and all even orders. `sample_noise` is that of a batch of one sample, `scale` the factor of larger
    # ones. `baseline` are the samples' losses without noise.
    network = evaluation.network
    loss = evaluation.loss
    n = len(evaluation.samples)
    means = []
    with torch.no_grad():
        for _ in range(draws):
            noise_samples = scale * sample_noise(n, generator)
            # the mean over +noise and -noise removes all odd orders exactly
            total = 0.0
            for part, x, y in evaluation.chunks():
                for statistics in (noise_samples[part], -noise_samples[part]):
                    hook = _noise_hook(statistics, evaluation.layouts[name])
                    with forward_hooks({name: evaluation.layers[name]}, hook):
                        total += float((loss(network(x), y).double() - baseline[part]).sum()) / 2
            means.append(total / n)
    return mean_estimate(torch.tensor(means, dtype=torch.float64))
