"""Running moments and Monte-Carlo estimates."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from gapscope.base.errors import InvalidInput
from gapscope.inspection.execution import Processes


class ChannelMoments:
    r"""Streaming mean, variance, skewness and excess kurtosis per channel, in float64.

    Central sums $M_k = \sum (h - \bar h)^k$ of two parts A and B are merged exactly: with $\delta = \bar h_B - \bar
    h_A$ and $n = n_A + n_B$, e.g. $M_2 = M_2^A + M_2^B + \delta^2 n_A n_B / n$. Moments are exact up to rounding and
    do not depend on the chunks; unlike raw sums they are accurate for a mean far larger than the deviation. `order` is
    the highest moment, 2 or 4 (2 is cheaper).

    Reference: Chan, Golub and LeVeque 1979; Pebay 2008, eq. 2.1 (third and fourth order).

    Args:
        order: Highest moment, 2 (mean and variance) or 4 (skewness and kurtosis as well).

    >>> moments = ChannelMoments()
    >>> moments.update(torch.tensor([[1.0], [2.0]])); moments.update(torch.tensor([[6.0]]))
    >>> moments.mean.tolist(), moments.variance.round(decimals=6).tolist()
    ([3.0], [4.666667])
    """

    def __init__(self, order: int = 2) -> None:
        if order not in (2, 4):
            raise InvalidInput(f"order of ChannelMoments must be 2 or 4; got {order}.")
        self.order = order
        self.count = 0
        self._mean = self._m2 = self._m3 = self._m4 = torch.zeros(0)

    def update(self, h: Float[Tensor, "n c *positions"]) -> None:
        """Add one chunk [n, C, ...] (every position of every sample is one value).

        Args:
            h: Values of one chunk of samples, channels in the second dimension.
        """
        values = h.detach().transpose(0, 1).flatten(1).double()  # (C, n * positions)
        a = self.count
        b = values.shape[1]
        mean = values.mean(1)
        deviation = values - mean[:, None]
        square = deviation.square()
        m2 = square.sum(1)
        zero = torch.zeros_like(mean)
        if a == 0:
            self._mean = mean
            self._m2 = zero
            self._m3 = zero
            self._m4 = zero
        total = a + b
        delta = mean - self._mean if a else zero
        if self.order == 4:
            # the third and fourth order need the lower sums before their update: highest order first
            m3 = (deviation * square).sum(1)
            m4 = square.square().sum(1)
            of_means = delta**4 * (a * b * (a * a - a * b + b * b) / total**3)
            with_m2 = 6 * delta**2 * (a * a * m2 + b * b * self._m2) / total**2
            with_m3 = 4 * delta * (a * m3 - b * self._m3) / total
            self._m4 = self._m4 + m4 + of_means + with_m2 + with_m3
            of_means = delta**3 * (a * b * (a - b) / total**2)
            with_m2 = 3 * delta * (a * m2 - b * self._m2) / total
            self._m3 = self._m3 + m3 + of_means + with_m2
        self._m2 = self._m2 + m2 + delta**2 * (a * b / total)
        self._mean = self._mean + delta * (b / total)
        self.count = total

    def join(self, among: Processes) -> None:
        """Add the moments of all other processes (order 2 only).

        Args:
            among: The processes, each with the moments of its own samples.
        """
        # sum over processes p of M_2^p + n_p (mean_p - mean)^2, the same merge for any number of parts
        count = among.sum(
            torch.tensor(float(self.count), dtype=torch.float64, device=self._mean.device)
        )
        mean = among.sum(self._mean * self.count) / count
        self._m2 = among.sum(self._m2 + self.count * (self._mean - mean).square())
        self._mean = mean
        self.count = int(count)

    @property
    def mean(self) -> Float[Tensor, " c"]:
        """Mean of each channel."""
        return self._mean

    @property
    def variance(self) -> Float[Tensor, " c"]:
        """Biased variance of each channel (divided by the number of values)."""
        return self._m2 / self.count

    @property
    def skewness(self) -> Float[Tensor, " c"]:
        """E(h-mu)^3 / sigma^3 per channel (0 if the channel is constant)."""
        return torch.where(self._m2 > 0, self._m3 / self.count / self.variance**1.5, 0.0)

    @property
    def excess_kurtosis(self) -> Float[Tensor, " c"]:
        """E(h-mu)^4 / sigma^4 - 3 per channel (0 for a Gaussian, the lower bound -2 if constant)."""
        return torch.where(self._m2 > 0, self._m4 / self.count / self.variance**2 - 3, -2.0)
