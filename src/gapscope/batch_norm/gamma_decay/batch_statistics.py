r"""Moments of batch mean and standard deviation: closed forms, and their check on data.

With $a = (\mu_B-\mu_P)/\sigma_P$ and $s = \sigma_B/\sigma_P - 1$ the paper assumes $\mu_B \sim N(\mu_P, \sigma_P^2/M)$
and $\sigma_B \sim N(\sigma_P, \sigma_P^2 (\rho+2)/4M)$ (the second $\sigma_P^2$ is missing in print), independent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gapscope.base.errors import check_range
from gapscope.base.random_streams import resolve_generator
from gapscope.base.samples import Samples, slices
from gapscope.batch_norm.gamma_decay.curvature import check_batch_sizes, copy_with_population, normalized_input
from gapscope.batch_norm.gamma_decay.measured_excess import random_batches
from gapscope.batch_norm.norm_layers import batch_norm_layers
from gapscope.inspection.hooks import forward_hooks
from gapscope.inspection.moments import ChannelMoments
from gapscope.inspection.outputs import inspection_mode, prepare_inputs, samples_per_pass
from gapscope.inspection.validation import ready
from gapscope.results.result import RowResult

if TYPE_CHECKING:
    import pandas


def gaussian_std_moments(batch_size: int) -> tuple[float, float, float]:
    r"""Return exact $E[\sigma_B]$, $E[1/\sigma_B]$, $E[1/\sigma_B^2]$ for M > 3 Gaussians.

    $M\sigma_B^2$ (biased variance) is chi-squared with M - 1 degrees of freedom, so with $\Gamma$ the gamma function
    $E[\sigma_B^k] = (2/M)^{k/2}\, \Gamma(\frac{M-1+k}{2}) / \Gamma(\frac{M-1}{2})$; k = -2 gives $M/(M-3)$.

    Reference: Luo et al. 2019, appendix C.3.

    Raises:
        InvalidInput: M is 3 or smaller (infinite last moment).

    >>> [round(value, 8) for value in gaussian_std_moments(16)]
    [0.95225383, 1.0882901, 1.23076923]
    """
    check_range("batch_size", batch_size, 3, low_open=True)

    def moment(k: int) -> float:
        log_ratio = math.lgamma((batch_size - 1 + k) / 2) - math.lgamma((batch_size - 1) / 2)
        return (2 / batch_size) ** (k / 2) * math.exp(log_ratio)

    return moment(1), moment(-1), moment(-2)


@dataclass(frozen=True)
class StatisticsRow:
    """Moment of one layer's batch statistics per channel, in units of sigma_P.

    Attributes:
        quantity: "mean_variance", Var(a); "std_variance", Var(s); "std_bias", E[s]; "inverse_std_bias", E[1/(1+s)] - 1;
            "covariance", Cov(a, s).
        measured: Over random batches [C].
        standard_error: Of `measured`, over batches [C].
        predicted: To order 1/M, from the variance over samples of the mean and mean square over positions [C].
        paper: From 1/M and (rho + 2)/4M [C], with all positions as copies; independent mean and deviation.
    """

    layer: str
    batch_size: int
    quantity: str
    measured: Float[Tensor, " c"]
    standard_error: Float[Tensor, " c"]
    predicted: Float[Tensor, " c"]
    paper: Float[Tensor, " c"]


class BatchStatistics(RowResult[StatisticsRow]):
    """Rows of `batch_statistics`, with a table."""

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per layer, batch size and quantity, with means over channels."""
        import pandas

        rows = [
            {name: float(value.mean()) if isinstance(value, Tensor) else value for name, value in vars(row).items()}
            for row in self
        ]
        return pandas.DataFrame(rows).set_index(["layer", "batch_size", "quantity"])


@dataclass(frozen=True)
class _Population:
    """Mean and mean square of u over positions per sample [n, C], and moments."""

    means: Tensor
    squares: Tensor
    moments: ChannelMoments


def _populations(
    network: nn.Module, layers: dict[str, Any], samples: Samples, chunk_size: int
) -> dict[str, _Population]:
    means: dict[str, list[Tensor]] = {name: [] for name in layers}
    squares: dict[str, list[Tensor]] = {name: [] for name in layers}
    moments = {name: ChannelMoments(order=4) for name in layers}

    def add(name: str, layer: Any, inputs: tuple[Tensor, ...]) -> None:
        u = normalized_input(layer, inputs[0]).double()
        means[name].append(u.mean(2).cpu())
        squares[name].append(u.square().mean(2).cpu())
        moments[name].update(u.cpu())

    with forward_hooks(layers, add, before=True), torch.no_grad():
        for part in slices(len(samples), chunk_size):
            network(prepare_inputs(network, samples.inputs[part]))
    return {name: _Population(torch.cat(means[name]), torch.cat(squares[name]), moments[name]) for name in layers}


def _measured(population: _Population, batch_size: int, passes: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Return values over batches [batches, C] whose mean is each quantity."""
    n = len(population.means)
    batches = list(random_batches(n, batch_size, passes, n, generator))
    a = torch.cat([population.means[indices].mean(1) for indices in batches])
    mean_square = torch.cat([population.squares[indices].mean(1) for indices in batches])
    # The population's own variance in units of sigma_P^2 + eps; the rest, eps, is part of every batch's.
    rest = 1 - population.squares.mean(0) + population.means.mean(0).square()
    s = (mean_square - a.square() + rest).clamp_min(0).sqrt() - 1
    centred_a, centred_s = a - a.mean(0), s - s.mean(0)
    return {
        "mean_variance": centred_a.square(),
        "std_variance": centred_s.square(),
        "std_bias": s,
        "inverse_std_bias": 1 / (1 + s) - 1,
        "covariance": centred_a * centred_s,
    }


def _predicted(population: _Population, factor: float) -> dict[str, Tensor]:
    a, q = population.means - population.means.mean(0), population.squares - population.squares.mean(0)
    # D = sigma_B^2 / sigma_P^2 - 1 has E[D] = -f V1 and E[D^2] = f V2 to order 1/M. With s = D/2 - D^2/8 and
    # 1 / (1 + s) - 1 = -D/2 + 3 D^2/8 follow the five moments below.
    v1, v2, v12 = a.square().mean(0), q.square().mean(0), (a * q).mean(0)
    return {
        "mean_variance": factor * v1,
        "std_variance": factor * v2 / 4,
        "std_bias": -factor * (v1 / 2 + v2 / 8),
        "inverse_std_bias": factor * (v1 / 2 + 3 * v2 / 8),
        "covariance": factor * v12 / 2,
    }


def _paper(population: _Population, batch_size: int) -> dict[str, Tensor]:
    std_variance = (population.moments.excess_kurtosis + 2) / (4 * batch_size)
    zero = torch.zeros_like(std_variance)
    return {
        "mean_variance": zero + 1 / batch_size,
        "std_variance": std_variance,
        "std_bias": zero,
        "inverse_std_bias": std_variance,
        "covariance": zero,
    }


def batch_statistics(
    network: nn.Module,
    data: Any,
    *,
    batch_sizes: Sequence[int] = (16, 32, 64, 128),
    layers: Sequence[str] | None = None,
    passes: int = 100,
    chunk_size: int | None = None,
    generator: torch.Generator | None = None,
) -> BatchStatistics:
    r"""Measure and predict moments of each layer's batch mean and standard deviation.

    On a copy of the network with exact population statistics, random batches of M samples are formed (without
    replacement). Measured: Var(a), Var(s), E[s], E[1/(1+s)]-1 and Cov(a, s). Predicted, with $V_1, V_2, V_{12}$ the
    variances and covariance over samples of the mean and mean square over positions of u, and $f = (n-M)/(M(n-1))$:
    $fV_1$ (exact), $fV_2/4$, $-f(V_1/2+V_2/8)$, $f(V_1/2+3V_2/8)$, $fV_{12}/2$, up to $O(1/M^2)$; without
    positions $V_1 = 1$, $V_2 = \rho + 2$, $V_{12}$ = skewness. Paper: the priors of its section 2.

    Cost: one forward pass over the data; memory O(n * channels), float64.

    Reference: Luo et al. 2019, section 2.

    Raises:
        InvalidInput: A batch size does not fit the data.

    >>> rows = batch_statistics(nn.BatchNorm1d(1), torch.tensor([[0.0], [2.0]]).repeat(500, 1), batch_sizes=(10,))
    >>> round(10 * rows[0].measured.item(), 1), round(10 * rows[0].predicted.item(), 3)
    (1.0, 0.991)
    """
    prepared = ready(network, data)
    network, samples = prepared.network, prepared.samples
    n = len(samples)
    check_batch_sizes("batch_sizes", batch_sizes, n)
    generator = resolve_generator(generator)
    network, names = copy_with_population(network, samples, layers, chunk_size)
    with inspection_mode(network):
        chunk_size = samples_per_pass(network, samples.inputs, chunk_size)
        populations = _populations(network, batch_norm_layers(network, names), samples, chunk_size)
    rows = []
    for name, population in populations.items():
        for size in batch_sizes:
            measured = _measured(population, size, passes, generator)
            predicted, paper = _predicted(population, (n - size) / (size * (n - 1))), _paper(population, size)
            for quantity, values in measured.items():
                mean, error = values.mean(0), values.std(0) / len(values) ** 0.5
                rows.append(StatisticsRow(name, size, quantity, mean, error, predicted[quantity], paper[quantity]))
    return BatchStatistics(rows)
