"""Sums over samples from which the gamma decay of one layer is computed, and that computation."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from gapscope.batch_norm.gamma_decay.layer_decay import LayerDecay, quadratic
from gapscope.inspection.moments import ChannelMoments


def _products(values: Tensor, full: bool) -> Tensor:
    """Sum over rows of (x, y) -> xx, yy, xy for the halves x, y of the columns: [3, C], or with all pairs [2C, 2C]."""
    if full:
        return values.T @ values
    x, y = values.chunk(2, 1)
    return torch.stack([(x * x).sum(0), (y * y).sum(0), (x * y).sum(0)])


def _blocks(products: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Blocks xx, yy, xy, yx of `_products`."""
    if len(products) == 3:
        xx, yy, xy = products
        return xx, yy, xy, xy
    c = len(products) // 2
    return products[:c, :c], products[c:, c:], products[:c, c:], products[c:, :c]


class LayerSums:
    r"""Accumulates one layer, chunk by chunk, and turns the sums into its gamma decay.

    Batch statistics are means over the samples of a batch of $a_j$ = mean of u over the positions of sample j, and
    $q_j$ = mean of $u^2$. So with $V_1 = \mathrm{Var}\, a_j$, $V_2 = \mathrm{Var}\, q_j$, $V_{12} = \mathrm{Cov}(a_j,
    q_j)$ over samples: $v_\mu = V_1/M$ exactly, and, from $\sigma_B^2/\sigma_P^2 - 1 = D$, $s = D/2 - D^2/8 + \dots$:
    $v_\sigma = V_2/4M$, $c = V_{12}/2M$, $E[\sigma_P/\sigma_B] - 1 = (V_1/2 + 3V_2/8)/M$, up to $O(1/M^2)$.
    Without positions these are $1/M$, $(\rho+2)/4M$, skewness/2M and $(3\rho+10)/8M$.

    Args:
        channels: C.
        full: Whether pairs of channels are kept.
        analytic: Whether every position of a sample is taken for the same value, as the paper prints.
        draws: Number of random draws of the curvature, 1 where it is exact.
        device: Device of the sums.
    """

    def __init__(self, channels: int, *, full: bool, analytic: bool, draws: int, device: torch.device) -> None:
        self.full, self.analytic, self.n = full, analytic, 0
        shape = (2 * channels, 2 * channels) if full else (3, channels)
        self.noise, self.noise_sum, self.curvature, self.gradient, self.gradient_times_noise = (
            torch.zeros(shape, dtype=torch.float64, device=device)
            for shape in (shape, (2 * channels,), (draws, *shape), (2, channels), (2, channels))
        )
        self.moments = ChannelMoments(order=4)

    def add_inputs(self, u: Float[Tensor, "n c positions"]) -> None:
        """Take in the normalised inputs of one chunk."""
        self.moments.update(u)
        noise = self._noise(u)
        self.n += len(u)
        self.noise_sum += noise.sum(0)
        self.noise += _products(noise, self.full)

    @staticmethod
    def _noise(u: Tensor) -> Tensor:
        return torch.cat([u.square().mean(2), u.mean(2)], 1).double()  # (n, 2C): q_j, a_j

    def add_gradient(self, u: Tensor, output_gradient: Tensor, by_gamma: Tensor, by_beta: Tensor) -> None:
        """Take in the derivatives of each sample's loss by the output, gamma and beta."""
        gradient = torch.cat([by_gamma, by_beta], 1).double()
        self.gradient += gradient.sum(0).view(2, -1)
        if self.analytic:
            g = output_gradient.view(u.shape)
            self.gradient_times_noise += torch.stack([(g * u**3).sum((0, 2)), (g * u).sum((0, 2))])
        else:
            self.gradient_times_noise += (gradient * self._noise(u)).sum(0).view(2, -1)

    def add_direction(self, draw: int, by_gamma: Tensor, by_beta: Tensor) -> None:
        """Take in one direction whose squared derivatives add up to the curvature."""
        self.curvature[draw] += _products(torch.cat([by_gamma, by_beta], 1).double(), self.full)

    def add_diagonal(self, draw: int, diagonal: Float[Tensor, "3 c"]) -> None:
        """Take in diagonals of the curvature themselves."""
        self.curvature[draw] += diagonal

    def noise_covariance(self, skewness: bool) -> tuple[Tensor, ...]:
        """V2, V1, V21 and V12 as vectors, or as matrices over pairs of channels."""
        if self.analytic:
            rho, skew = self.moments.excess_kurtosis, self.moments.skewness
            vectors = rho + 2, torch.ones_like(rho), skew, skew
            v2, v1, v21, v12 = (vector.diag() for vector in vectors) if self.full else vectors
        else:
            mean = self.noise_sum[None] / self.n
            v2, v1, v21, v12 = _blocks(self.noise / self.n - _products(mean, self.full))
        return (v2, v1, v21, v12) if skewness else (v2, v1, 0 * v21, 0 * v12)

    def _first_order(self, v2: Tensor, v1: Tensor, v12: Tensor, *, in_batch: bool) -> Tensor:
        """First-order part per unit of gamma, times M."""
        by_gamma, by_beta = self.gradient / self.n
        first = (v1 / 2 + 3 * v2 / 8) * by_gamma + v12 / 2 * by_beta
        if not in_batch:
            return first
        # A sample is part of its own batch: -Cov(D, dl/dgamma)/2 - Cov(a, dl/dbeta), from the samples of the batch.
        mean_q, mean_a = (self.noise_sum / self.n).view(2, -1)
        with_q, with_a = self.gradient_times_noise / self.n
        return first - (with_q - mean_q * by_gamma) / 2 - (with_a - mean_a * by_beta)

    def finish(
        self, name: str, gamma: Tensor, length_factor: Tensor, *, in_batch: bool, skewness: bool, estimated: bool
    ) -> LayerDecay:
        """Return the decay for a batch of one sample; batches of M have 1/M of it.

        Args:
            name: Name of the layer.
            gamma: gamma [C].
            length_factor: Ratio of the decayed length to gamma [C].
            in_batch: Whether the sample is part of the batch whose statistics it meets.
            skewness: Whether the covariance of batch mean and standard deviation counts.
            estimated: Whether the curvature is a mean over random draws; the standard error of a single one is NaN.

        Returns:
            The decay with `batch_size` 1.
        """
        noise = self.noise_covariance(skewness)
        v2, v1, _, v12 = (_on_channels(block) for block in noise)
        draws = self.curvature / self.n
        couplings = torch.stack([self._couple(noise, _blocks(draw)) for draw in draws])
        coupling, length = couplings.mean(0), gamma * length_factor
        error = None
        if estimated:
            decays = torch.stack([quadratic(length, z) for z in couplings])
            error = float(decays.std() / len(decays) ** 0.5) if len(decays) > 1 else float("nan")
        h_gamma, h_beta, h_cross, _ = (_on_channels(block) for block in _blocks(draws.mean(0)))
        return LayerDecay(
            name=name, batch_size=1, gamma=gamma, length_factor=length_factor,
            zeta=_on_channels(coupling), coupling=coupling if self.full else None,
            first_order=gamma * self._first_order(v2, v1, v12, in_batch=in_batch),
            gradient_gamma=self.gradient[0] / self.n, gradient_beta=self.gradient[1] / self.n,
            mean_variance=v1, std_variance=v2 / 4, covariance=v12 / 2,
            curvature_gamma=h_gamma, curvature_beta=h_beta, curvature_cross=h_cross,
            excess_kurtosis=self.moments.excess_kurtosis, skewness=self.moments.skewness, standard_error=error,
        )  # fmt: skip

    @staticmethod
    def _couple(noise: tuple[Tensor, ...], curvature: tuple[Tensor, ...]) -> Tensor:
        v2, v1, v21, v12 = noise
        h_gamma, h_beta, h_gamma_beta, h_beta_gamma = curvature
        return (v2 * h_gamma / 4 + v1 * h_beta + (v21 * h_gamma_beta + v12 * h_beta_gamma) / 2) / 2


def _on_channels(block: Tensor) -> Tensor:
    return block.diagonal().clone() if block.ndim == 2 else block
