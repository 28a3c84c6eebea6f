"""Result of `gamma_decay`: one layer's decay per channel, and a network's decay per layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from torch import Tensor

from gapscope.base.errors import check_range
from gapscope.results.estimate import Estimate
from gapscope.results.result import Result, to_builtin

if TYPE_CHECKING:
    import pandas

PerChannel = Float[Tensor, " c"]


@dataclass(frozen=True)
class LayerDecay:
    r"""Expected loss that batch statistics of one layer add, per channel, in float64.

    With $a = (\mu_B-\mu_P)/\sigma_P$, $s = \sigma_B/\sigma_P - 1$ and u the normalized input:

    Attributes:
        name: Name of the layer.
        batch_size: Emulated batch size M.
        gamma: gamma [C] (1 without affine parameters).
        zeta: Decay rate [C], $\frac12 (v_\sigma H_{\gamma\gamma} + v_\mu H_{\beta\beta}) + c H_{\gamma\beta}$.
        coupling: Z [C, C] of correlated channels, zeta on its diagonal; None for covariance="diagonal".
        first_order: Part that is linear in gamma [C], if a sample is normalized with its own batch.
        gradient_gamma: Mean derivative of the loss by gamma [C], at the population statistics.
        gradient_beta: Mean derivative of the loss by beta [C], at the population statistics.
        mean_variance: $v_\mu = \mathrm{Var}(a)$ [C].
        std_variance: $v_\sigma = \mathrm{Var}(s)$ [C].
        covariance: $c = \mathrm{Cov}(a, s)$ [C].
        curvature_gamma: $H_{\gamma\gamma}$, the mean second derivative of the loss by gamma [C].
        curvature_beta: $H_{\beta\beta}$, that by beta [C].
        curvature_cross: $H_{\gamma\beta}$, the mixed one [C].
        excess_kurtosis: Excess kurtosis of u [C], over samples and positions.
        skewness: Skewness of u [C], over samples and positions.
        standard_error: Standard error of `decay` if the curvature is a Monte Carlo estimate, None if it is exact.
        sampled: Monte Carlo estimate in place of `decay`, with all even orders; None without noise samples.
    """

    name: str
    batch_size: int
    gamma: PerChannel
    zeta: PerChannel
    coupling: Float[Tensor, "c c"] | None
    first_order: PerChannel
    gradient_gamma: PerChannel
    gradient_beta: PerChannel
    mean_variance: PerChannel
    std_variance: PerChannel
    covariance: PerChannel
    curvature_gamma: PerChannel
    curvature_beta: PerChannel
    curvature_cross: PerChannel
    excess_kurtosis: PerChannel
    skewness: PerChannel
    standard_error: float | None
    sampled: Estimate | None = None

    @property
    def decay(self) -> Estimate:
        """Sum over channels of zeta gamma^2, or over channel pairs if `coupling` is known."""
        return Estimate(float(quadratic(self.gamma, self.rate)), self.standard_error)

    @property
    def rate(self) -> Tensor:
        """Rate r, [C] or [C, C], with decay sum_i r_i gamma_i^2 or gamma^T r gamma."""
        if self.coupling is None:
            return self.zeta
        return self.coupling

    @property
    def predicted(self) -> Estimate:
        """Predicted excess loss: first-order part plus `sampled` (else `decay`)."""
        if self.sampled is None:
            even = self.decay
        else:
            even = self.sampled
        return Estimate(even + float(self.first_order.sum()), even.standard_error)

    def scaled(self, factor: float, batch_size: int) -> LayerDecay:
        """Scale all variances of the batch statistics by `factor` (drops the sampled part).

        Args:
            factor: Ratio of the new variances of the batch statistics to the present ones.
            batch_size: Batch size that the result states.
        """
        names = (
            "zeta",
            "coupling",
            "first_order",
            "mean_variance",
            "std_variance",
            "covariance",
            "standard_error",
        )
        values = {
            name: value * factor for name in names if (value := getattr(self, name)) is not None
        }
        return replace(self, batch_size=batch_size, sampled=None, **values)


def quadratic(gamma: Tensor, rate: Tensor) -> Tensor:
    """Return sum_i rate_i gamma_i^2, or gamma^T rate gamma for a matrix of rates."""
    if rate.ndim == 1:
        return (rate * gamma.square()).sum()
    return gamma @ rate @ gamma


def _total(estimates: list[Estimate]) -> Estimate:
    errors = [
        estimate.standard_error for estimate in estimates if estimate.standard_error is not None
    ]
    return Estimate(sum(estimates), sum(error**2 for error in errors) ** 0.5 if errors else None)


class GammaDecay(Mapping[str, LayerDecay], Result):
    """Gamma decay of a network: name of layer -> LayerDecay, in forward order.

    Args:
        layers: Decay of each layer, by its name in `network.named_modules()`.
        n_samples: Number of samples n of the population.
        replacement: Whether batches are drawn with replacement, so that the size of the population does not matter.
    """

    def __init__(self, layers: Mapping[str, LayerDecay], n_samples: int, replacement: bool) -> None:
        self._layers = dict(layers)
        self.n_samples = n_samples
        self.replacement = replacement

    def __getitem__(self, name: str) -> LayerDecay:
        return self._layers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)

    @property
    def batch_size(self) -> int:
        """The emulated batch size M."""
        return next(iter(self.values())).batch_size

    @property
    def decay(self) -> Estimate:
        """Sum of the layers' decay, in units of the loss."""
        return _total([layer.decay for layer in self.values()])

    @property
    def predicted(self) -> Estimate:
        """Predicted loss with batch minus population statistics, summed over the layers."""
        return _total([layer.predicted for layer in self.values()])

    def for_batch_size(self, batch_size: int) -> GammaDecay:
        """Scale the decay to another batch size by (n - M) / (M (n - 1)), or 1/M.

        A sampled part is omitted: it belongs to its own batch size.

        Args:
            batch_size: Batch size M, below the number of samples unless batches are drawn with replacement.
        """
        factor = self.variance_factor(batch_size) / self.variance_factor(self.batch_size)
        layers = {name: layer.scaled(factor, batch_size) for name, layer in self.items()}
        return GammaDecay(layers, self.n_samples, self.replacement)

    def with_sampled(self, estimates: Mapping[str, Estimate]) -> GammaDecay:
        """Return the decay with the noise samples of some layers.

        Args:
            estimates: Name of a layer -> its excess loss from noise samples; other layers have none.
        """
        layers = {name: replace(layer, sampled=estimates.get(name)) for name, layer in self.items()}
        return GammaDecay(layers, self.n_samples, self.replacement)

    def variance_factor(self, batch_size: int) -> float:
        """Return the variance of a mean over a random batch, in units of that of one sample.

        Args:
            batch_size: Batch size M, below the number of samples unless batches are drawn with replacement.
        """
        n = self.n_samples
        if self.replacement:
            check_range("batch_size", batch_size, 1)
            return 1 / batch_size
        check_range(
            "batch_size (below the number of samples, or use replacement=True)",
            batch_size,
            1,
            n - 1,
        )
        return (n - batch_size) / (batch_size * (n - 1))

    def _content(self) -> dict[str, Any]:
        """Return the totals and all layers' numbers per channel."""
        names = ("batch_size", "n_samples", "replacement", "decay", "predicted")
        values = {name: to_builtin(getattr(self, name)) for name in names}
        return values | {"layers": {name: to_builtin(layer) for name, layer in self.items()}}

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per layer."""
        import pandas

        rows = [
            {
                "layer": layer.name,
                "batch_size": layer.batch_size,
                "channels": len(layer.gamma),
                "mean_zeta": float(layer.zeta.mean()),
                "mean_gamma_squared": float(layer.gamma.square().mean()),
                "decay": float(layer.decay),
                "first_order": float(layer.first_order.sum()),
                "predicted": float(layer.predicted),
                "standard_error": layer.standard_error,
            }
            for layer in self.values()
        ]
        return pandas.DataFrame(rows).set_index("layer")

    __repr__ = Result.__repr__
