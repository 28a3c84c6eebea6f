"""Gamma decay: the regularisation that batch statistics amount to, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, check_choice, check_range
from gapscope.base.random_streams import given_or_repeatable
from gapscope.base.records import Estimate
from gapscope.base.samples import Samples, as_samples, slices
from gapscope.batch_norm.gamma_decay.curvature import (
    derivatives_along,
    hessian_diagonals,
    output_gradient,
    output_hessian_factor,
    tapped_forward,
)
from gapscope.batch_norm.gamma_decay.layer_decay import GammaDecay, LayerDecay
from gapscope.batch_norm.gamma_decay.length_factors import euclidean_length_factors
from gapscope.batch_norm.gamma_decay.sampled_decay import even_part, noise_source
from gapscope.batch_norm.gamma_decay.sums import LayerSums
from gapscope.batch_norm.norm_layers import batch_norm_layers, in_forward_order
from gapscope.inspection.losses import Loss, sample_losses
from gapscope.inspection.outputs import device_of, inspecting, ready_inputs, samples_per_pass

Form = Literal["in_batch", "independent"]
Metric = Literal["empirical", "euclid"]
Curvature = Literal["gauss_newton", "squared_score", "hessian"]
Covariance = Literal["full", "diagonal"]


class _Measurement:
    """One pass over the samples that fills the sums of every layer."""

    def __init__(
        self, network: nn.Module, layers: dict[str, Any], samples: Samples, targets: Tensor, loss: Loss,
        curvature: str, covariance: str, analytic: bool, draws: int | None, generator: torch.Generator,
    ) -> None:  # fmt: skip
        self.network, self.layers, self.samples, self.targets, self.loss = network, layers, samples, targets, loss
        self.curvature, self.draws, self.generator = curvature, draws, generator
        self.signs: Tensor | None = None
        self.sums = {
            name: LayerSums(
                layer.num_features, full=covariance == "full", analytic=analytic, draws=draws or 1,
                device=device_of(network),
            )
            for name, layer in layers.items()
        }  # fmt: skip

    def run(self, chunk_size: int) -> None:
        probes = self._probes() if self.curvature == "hessian" else []
        for part in slices(len(self.samples), chunk_size):
            x = ready_inputs(self.network, self.samples.inputs[part])
            y = self.targets[part].to(x.device)
            self._first_order_pass(x, y, part)
            if probes:
                found = hessian_diagonals(self.network, self.layers, x, y, self.loss, probes)
                for probe, diagonals in enumerate(found):
                    for name, diagonal in diagonals.items():
                        self.sums[name].add_diagonal(probe if self.draws else 0, diagonal)

    def _first_order_pass(self, x: Tensor, y: Tensor, part: slice) -> None:
        outputs, taps = tapped_forward(self.network, self.layers, x)
        for name, tap in taps.items():
            self.sums[name].add_inputs(tap.normalised)
        score = output_gradient(self.loss, outputs, y)
        for name, gradient, by_gamma, by_beta in derivatives_along(outputs, taps, score):
            self.sums[name].add_gradient(taps[name].normalised, gradient, by_gamma, by_beta)
            if self.curvature == "squared_score":
                self.sums[name].add_direction(0, by_gamma, by_beta)
        if self.curvature == "gauss_newton":
            for draw, direction in self._directions(outputs, y, part):
                for name, _, by_gamma, by_beta in derivatives_along(outputs, taps, direction):
                    self.sums[name].add_direction(draw, by_gamma, by_beta)

    def _directions(self, outputs: Tensor, y: Tensor, part: slice) -> Iterator[tuple[int, Tensor]]:
        """Directions in output space whose outer products make the Hessian, exactly or on average."""
        factor = output_hessian_factor(self.loss, outputs, y)
        if self.draws is None:
            yield from ((0, column) for column in factor.unbind(2))
            return
        if self.signs is None:
            shape = self.draws, len(self.samples), factor.shape[2]
            self.signs = torch.randint(0, 2, shape, generator=self.generator, dtype=torch.int8) * 2 - 1
        signs = self.signs[:, part].to(device=factor.device, dtype=factor.dtype)
        yield from enumerate(torch.einsum("nkr,dnr->dnk", factor, signs))

    def _probes(self) -> list[dict[str, Tensor]]:
        device = device_of(self.network)
        channels = {name: layer.num_features for name, layer in self.layers.items()}
        if self.draws is None:
            return [
                {name: torch.eye(c, device=device)[i] if name == one else torch.zeros(c, device=device)
                 for name, c in channels.items()}
                for one, n in channels.items() for i in range(n)
            ]  # fmt: skip
        return [
            {name: (torch.randint(0, 2, (c,), generator=self.generator) * 2.0 - 1).to(device)
             for name, c in channels.items()}
            for _ in range(self.draws)
        ]  # fmt: skip

    def finish(self, name: str, length_factor: Tensor | None, *, in_batch: bool, skewness: bool) -> LayerDecay:
        layer = self.layers[name]
        ones = torch.ones_like(layer.running_mean, dtype=torch.float64)
        gamma = ones if layer.weight is None else layer.weight.detach().double()
        return self.sums[name].finish(
            name, gamma, ones if length_factor is None else length_factor, in_batch=in_batch, skewness=skewness,
            estimated=self.draws is not None,
        )  # fmt: skip

    def sampled(self, scale: float, draws: int, chunk_size: int, *, skewness: bool) -> dict[str, Estimate]:
        found = {}
        for name, layer in self.layers.items():
            v2, v1, v21, v12 = self.sums[name].noise_covariance(skewness)
            found[name] = even_part(
                self.network, name, layer, self.samples, self.targets, self.loss, noise_source(v2, v1, v12, v21),
                scale, draws, chunk_size, self.generator,
            )  # fmt: skip
        return found


def _check_together(metric: str, curvature: str, covariance: str, draws: int | None, noise_draws: int) -> None:
    if draws is not None:
        check_range("draws", draws, 1)
    if noise_draws:
        check_range("noise_draws (0 for none)", noise_draws, 2)
    if noise_draws and metric == "euclid":
        raise InvalidInput("noise_draws act on the network itself; use metric='empirical' with them.")
    if curvature == "hessian" and covariance == "full":
        raise InvalidInput("curvature='hessian' has the diagonal alone; use covariance='diagonal' with it.")
    if curvature == "squared_score" and draws is not None:
        raise InvalidInput("curvature='squared_score' is exact and takes no draws; use draws=None.")


def gamma_decay(
    network: nn.Module,
    data: Any,
    *,
    batch_size: int,
    layers: Sequence[str] | None = None,
    form: Form = "in_batch",
    metric: Metric = "empirical",
    curvature: Curvature = "gauss_newton",
    covariance: Covariance = "full",
    analytic: bool = False,
    skewness: bool = True,
    replacement: bool = False,
    loss: Loss | None = None,
    draws: int | None = None,
    noise_draws: int = 0,
    chunk_size: int | None = None,
    generator: torch.Generator | None = None,
) -> GammaDecay:
    r"""Regularisation that batch norm with batches of M gives each layer: zeta_i gamma_i^2, in units of the loss.

    Batch statistics $\mu_B = \mu_P + \sigma_P a$, $\sigma_B = \sigma_P (1+s)$ move every channel's output as
    $\gamma \to \gamma(1-s)$, $\beta \to \beta - \gamma a$, the same at all positions. To order 1/M the mean loss rises
    by $\sum_i \zeta_i \gamma_i^2$ and a part linear in gamma, where
    $$\zeta_i = \tfrac12 [v_\sigma H_{\gamma\gamma} + v_\mu H_{\beta\beta}] + c H_{\gamma\beta}.$$
    $v_\mu = \mathrm{Var}(a)$, $v_\sigma = \mathrm{Var}(s)$, $c = \mathrm{Cov}(a, s)$ come from the variances and
    covariances over samples of the mean and mean square over positions (see LayerSums): for fully connected layers they
    are $1/M$, $(\rho+2)/4M$ and skewness/2M with the excess kurtosis $\rho$. H are second derivatives of the loss,
    means over samples. The network is taken in evaluation mode, with its running statistics as population
    statistics; call `refresh_population` first where these are stale.

    The paper's theorem 1 is `covariance="diagonal", skewness=False, curvature="squared_score"`, without the part linear
    in gamma; there its sigmoid is $H_{\beta\beta}$ of the softplus model. In convolutions it also has `analytic=True`,
    which overestimates by one or two orders of magnitude.

    Cost: one pass over the data, forward and (1 + K) backward for K outputs, or (1 + draws). Sums are in float64; the
    memory beside one chunk is O(channels), or O(channels^2) a layer with `covariance="full"`. The result does not
    depend on `chunk_size`.

    Reference: Luo et al. 2019, theorem 1 and appendix C.4, corrected as said here.

    Args:
        network: Network with BatchNorm, PopulationNorm or GhostBatchNorm layers.
        data: Inputs with targets, taken for the population: (x, y), Samples, a Dataset or a DataLoader.
        batch_size: Emulated batch size M.
        layers: Names of layers; None for all.
        form: "in_batch": a sample meets the statistics of the batch it is in, as in training; "independent": of
            another batch, as the paper assumes. They differ in the part linear in gamma alone.
        metric: "empirical": gamma_i^2 is the variance of the layer's output over the data, which is what batch norm
            decays; "euclid", the paper's eq. 4: gamma_i^2 is a ||w_eff||^2 with w_eff = gamma w / sigma and a the mean
            variance of the inputs' coordinates. They agree where inputs are white.
        curvature: "gauss_newton"; "hessian" (second derivatives of the network too, which may make zeta negative,
            appendix C.4, diagonal only);
            "squared_score" (derivatives by the given labels, squared, as printed: too small for a network that fits).
        covariance: "full": channels are correlated in noise and curvature, decay = gamma^T Z gamma with zeta on the
            diagonal of Z; "diagonal": the paper's assumption of independent channels.
        analytic: Whether all positions of a sample count as one value (v_mu = 1/M), also in convolutions.
        skewness: Whether c counts.
        replacement: Whether batches are drawn with replacement (the data stand for an infinite population); without,
            all variances have the factor (n - M) / (n - 1).
        loss: Loss of each sample [n] from outputs [n, K] and targets; None for cross-entropy (class labels) or the
            squared error averaged over outputs (regression).
        draws: Number of random directions (gauss_newton: signs in output space; hessian: Hutchinson probes); None for
            all directions, exact.
        noise_draws: Number of Gaussian noises (2 or more) drawn for every sample and layer, with which `predicted`
            holds all even orders and the kinks of ReLU networks (`LayerDecay.sampled`) in the place of the second order
            by Gauss-Newton; 0 for none. Each costs three forward passes a layer and memory O(n * channels).
        chunk_size: Samples a pass, without effect beyond rounding; None for as many as memory allows.
        generator: Source of the draws; None for the same draws at every call.

    Returns:
        Name of layer -> LayerDecay, with totals; `.at(M)` gives another batch size at no cost.

    Raises:
        InvalidInput: A setting is out of range, or the data have no targets.

    >>> layer = nn.Sequential(nn.BatchNorm1d(1, eps=0.0, dtype=torch.float64))  # loss (u - y)^2, u = -1 or 1: rho = -2
    >>> u = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    >>> round(float(gamma_decay(layer, (u, u), batch_size=10, replacement=True).decay), 6)  # 2 / (2 * 10)
    0.1
    """
    for option, given, choices in (
        ("form", form, Form), ("metric", metric, Metric), ("curvature", curvature, Curvature),
        ("covariance", covariance, Covariance),
    ):  # fmt: skip
        check_choice(option, given, get_args(choices))
    _check_together(metric, curvature, covariance, draws, noise_draws)
    samples = as_samples(data)
    if samples.targets is None:
        raise InvalidInput("data must hold targets, for the curvature of the loss; got inputs alone. Pass (x, y).")
    generator = given_or_repeatable(generator)
    with inspecting(network):
        found = batch_norm_layers(network, layers)
        first = ready_inputs(network, samples.inputs[:1])
        ordered = {name: found[name] for name in in_forward_order(network, found, first)}
        measurement = _Measurement(
            network, ordered, samples, samples.targets, loss or sample_losses, curvature, covariance,
            analytic, draws, generator,
        )  # fmt: skip
        chunk_size = samples_per_pass(network, samples.inputs, chunk_size, one_pass=network, at_most=256)
        measurement.run(chunk_size)
        factors = euclidean_length_factors(network, ordered, samples, chunk_size) if metric == "euclid" else {}
        of_one_sample = {
            name: measurement.finish(name, factors.get(name), in_batch=form == "in_batch", skewness=skewness)
            for name in ordered
        }
        decay = GammaDecay(of_one_sample, len(samples), replacement).at(batch_size)
        if noise_draws:
            scale = decay.variance_factor(batch_size) ** 0.5
            sampled = measurement.sampled(scale, noise_draws, chunk_size, skewness=skewness)
            layers_with_it = {name: replace(layer, sampled=sampled[name]) for name, layer in decay.items()}
            decay = GammaDecay(layers_with_it, len(samples), replacement)
    return decay
