"""Gamma decay: the regularization equivalent to batch statistics, per layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, NotMeasurable, check_choice, check_range
from gapscope.base.random_streams import resolve_generator
from gapscope.batch_norm.gamma_decay.accumulators import LayerAccumulator, even_loss_excess
from gapscope.batch_norm.gamma_decay.curvature import (
    EvaluationData,
    derivatives_along,
    output_gradient,
    output_hessian_factor,
    prepare,
    tapped_forward,
)
from gapscope.batch_norm.gamma_decay.layer_decay import GammaDecay
from gapscope.batch_norm.norm_layers import batch_norm_layers, in_forward_order, preceding_layers
from gapscope.inspection.hooks import forward_hooks, named_modules
from gapscope.inspection.losses import Loss, sample_losses
from gapscope.inspection.moments import ChannelMoments
from gapscope.inspection.outputs import (
    BACKWARD_CHUNK_SIZE,
    device_of,
    inspection_mode,
    prepare_inputs,
    samples_per_pass,
)

Metric = Literal["empirical", "euclid"]
Curvature = Literal["gauss_newton", "squared_score"]
Covariance = Literal["full", "diagonal"]

Sums = dict[str, LayerAccumulator]


class _Directions:
    """Directions whose outer products sum to the Hessian by the outputs (or on average)."""

    def __init__(self, subject: EvaluationData, curvature: str, draws: int | None, generator: torch.Generator) -> None:
        self.subject, self.curvature, self.draws, self.generator = subject, curvature, draws, generator
        self.signs: Tensor | None = None

    def at(self, part: slice, outputs: Tensor, y: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yield (index of the Monte Carlo sample, direction [n, K]) for one chunk."""
        if self.curvature == "squared_score":
            yield 0, output_gradient(self.subject.loss, outputs, y)
            return
        factor = output_hessian_factor(self.subject.loss, outputs, y)  # (n, K, R), F F^T = H
        if self.draws is None:
            yield from ((0, column) for column in factor.unbind(2))
            return
        # E[(F z)(F z)^T] = F F^T for random signs z; those of all samples at once, so that chunks do not matter
        if self.signs is None:
            shape = self.draws, len(self.subject.samples), factor.shape[2]
            self.signs = torch.randint(0, 2, shape, generator=self.generator, dtype=torch.int8) * 2 - 1
        signs = self.signs[:, part].to(device=factor.device, dtype=factor.dtype)
        yield from enumerate(torch.einsum("nkr,dnr->dnk", factor, signs))


def _summed(
    subject: EvaluationData, *, curvature: str, covariance: str, draws: int | None, generator: torch.Generator
) -> Sums:
    """Stream the samples and accumulate the sums that determine the decay."""
    device = device_of(subject.network)
    sums = {
        name: LayerAccumulator(layer.num_features, full=covariance == "full", draws=draws or 1, device=device)
        for name, layer in subject.layers.items()
    }
    directions = _Directions(subject, curvature, draws, generator)
    for part, x, y in subject.chunks():
        outputs, taps = tapped_forward(subject.network, subject.layers, x)
        score = output_gradient(subject.loss, outputs, y)
        for name, by_gamma, by_beta in derivatives_along(outputs, taps, score):
            sums[name].add(taps[name].normalized, by_gamma, by_beta)
        for draw, direction in directions.at(part, outputs, y):
            for name, by_gamma, by_beta in derivatives_along(outputs, taps, direction):
                sums[name].add_direction(draw, by_gamma, by_beta)
    return sums


def euclidean_length_factors(subject: EvaluationData) -> dict[str, Tensor]:
    r"""Return Euclidean over empirical length, $\sqrt{a} \lVert w_i \rVert / \sigma_i$, [C]."""
    # sigma_i^2 = Var(w_i^T x) = w_i^T Sigma w_i. With Sigma = a I, a the mean variance of the inputs' coordinates (in a
    # convolution that of the channels of its group), it is a |w_i|^2. The ratio is 1 for white inputs.
    network, layers = subject.network, subject.layers
    feeders = preceding_layers(network, layers, subject.batch(slice(1))[0])
    for name in layers:
        if name not in feeders:
            raise NotMeasurable(
                f"metric='euclid' needs the weights before layer '{name}', whose input is not the output of one linear "
                "or convolutional layer. Omit it from layers, or use metric='empirical'."
            )
    modules: dict[str, Any] = {name: named_modules(network)[feeders[name]] for name in layers}
    moments = {name: ChannelMoments() for name in modules}

    def add(name: str, module: Any, inputs: tuple[Tensor, ...]) -> None:
        moments[name].update(inputs[0])

    with forward_hooks(modules, add, before=True), torch.no_grad():
        for _, x, _ in subject.chunks():
            network(x)
    factors = {}
    for name, module in modules.items():
        weight, groups = module.weight.detach().double(), getattr(module, "groups", 1)
        variance = moments[name].variance.view(groups, -1).mean(1).repeat_interleave(len(weight) // groups)
        empirical = layers[name].running_var.double() + layers[name].eps
        factors[name] = (variance * weight.flatten(1).square().sum(1) / empirical).sqrt()
    return factors


def _check_options(metric: str, curvature: str, covariance: str, draws: int | None, noise_draws: int) -> None:
    check_choice("metric", metric, get_args(Metric))
    check_choice("curvature", curvature, get_args(Curvature))
    check_choice("covariance", covariance, get_args(Covariance))
    if draws is not None:
        check_range("draws", draws, 1)
    if noise_draws:
        check_range("noise_draws (0 for none)", noise_draws, 2)
    if noise_draws and metric == "euclid":
        raise InvalidInput("noise_draws act on the network itself; use metric='empirical' with them.")
    if curvature == "squared_score" and draws is not None:
        raise InvalidInput("curvature='squared_score' is exact; use draws=None.")


def gamma_decay(
    network: nn.Module,
    data: Any,
    *,
    batch_size: int,
    layers: Sequence[str] | None = None,
    metric: Metric = "empirical",
    curvature: Curvature = "gauss_newton",
    covariance: Covariance = "full",
    replacement: bool = False,
    loss: Loss | None = None,
    draws: int | None = None,
    noise_draws: int = 0,
    chunk_size: int | None = None,
    generator: torch.Generator | None = None,
) -> GammaDecay:
    r"""Compute the regularization zeta_i gamma_i^2 of batch norm, in units of the loss.

    Batch statistics $\mu_B = \mu_P + \sigma_P a$, $\sigma_B = \sigma_P (1+s)$ move every channel's output as
    $\gamma \to \gamma(1-s)$, $\beta \to \beta - \gamma a$, the same at all positions. To order 1/M the mean loss rises
    by $\sum_i \zeta_i \gamma_i^2$ and a part linear in gamma:
    $$\zeta_i = \tfrac12 [v_\sigma H_{\gamma\gamma} + v_\mu H_{\beta\beta}] + c H_{\gamma\beta}.$$
    $v_\mu = \mathrm{Var}(a)$, $v_\sigma = \mathrm{Var}(s)$, $c = \mathrm{Cov}(a, s)$ are estimated from samples: for
    fully connected layers they are $1/M$, $(\rho+2)/4M$ and skewness/2M with the excess kurtosis $\rho$. H are second
    derivatives of the loss, means over samples. Running statistics count as population statistics (see
    `refresh_population`). The paper's theorem 1 is `covariance="diagonal", curvature="squared_score"` without c and
    without the part linear in gamma; its $v_\mu = 1/M$ is one or two orders of magnitude too large in convolutions.
    Cost: one pass over the data, forward and (1 + K) backward for K outputs, or (1 + draws).

    Reference: Luo et al. 2019, theorem 1 and appendix C.4, corrected as stated here.

    Args:
        metric: "empirical": gamma_i^2 is the variance of the layer's output over the data, which is what batch norm
            decays; "euclid", the paper's eq. 4: gamma_i^2 is a ||w_eff||^2 with w_eff = gamma w / sigma and a the mean
            variance of the inputs' coordinates. They agree where inputs are white.
        curvature: "gauss_newton", or "squared_score" (squared derivatives by the given labels, as printed: too small
            for a network that fits).
        covariance: "full": channels are correlated in noise and curvature, decay = gamma^T Z gamma with zeta on the
            diagonal of Z; "diagonal": the paper's assumption of independent channels.
        replacement: Whether batches are sampled with replacement; else all variances have the factor (n - M) / (n - 1).
        draws: Number of random directions in output space ("gauss_newton" only); None for all directions, exact.
        noise_draws: Number of Gaussian noise samples (2 or more) per sample and layer, with which `predicted` holds all
            even orders and the kinks of ReLU networks (`LayerDecay.sampled`); 0 for the second order by Gauss-Newton.
            Each costs three forward passes per layer.

    >>> layer = nn.Sequential(nn.BatchNorm1d(1, eps=0.0, dtype=torch.float64))  # loss (u - y)^2, u = -1 or 1: rho = -2
    >>> u = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    >>> round(float(gamma_decay(layer, (u, u), batch_size=10, replacement=True).decay), 6)  # 2 / (2 * 10)
    0.1
    """
    _check_options(metric, curvature, covariance, draws, noise_draws)
    network, samples = prepare(network, data, loss)
    generator = resolve_generator(generator)
    with inspection_mode(network):
        by_name = batch_norm_layers(network, layers)
        ordered = in_forward_order(network, by_name, prepare_inputs(network, samples.inputs[:1]))
        chunk_size = samples_per_pass(
            network, samples.inputs, chunk_size, one_pass=network, at_most=BACKWARD_CHUNK_SIZE
        )
        subject = EvaluationData(
            network, {name: by_name[name] for name in ordered}, samples, loss or sample_losses, chunk_size
        )
        sums = _summed(subject, curvature=curvature, covariance=covariance, draws=draws, generator=generator)
        factors = euclidean_length_factors(subject) if metric == "euclid" else {}
        of_one_sample = {}
        for name, layer in subject.layers.items():
            ones = torch.ones_like(layer.running_mean, dtype=torch.float64)
            gamma = ones if layer.weight is None else layer.weight.detach().double()
            length_factor = factors.get(name, ones)
            of_one_sample[name] = sums[name].finish(name, gamma, length_factor, estimated=draws is not None)
        decay = GammaDecay(of_one_sample, len(samples), replacement).for_batch_size(batch_size)
        if not noise_draws:
            return decay
        scale = decay.variance_factor(batch_size) ** 0.5
        sampled = {
            name: even_loss_excess(
                subject, name, sums[name].noise_covariance(), scale=scale, draws=noise_draws, generator=generator
            )
            for name in decay
        }
    return GammaDecay(
        {name: replace(layer, sampled=sampled[name]) for name, layer in decay.items()}, len(samples), replacement
    )
