"""Gamma decay: the regularization equivalent to batch statistics, per layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from gapscope.base.arguments import check_arguments
from gapscope.base.errors import InvalidInput, check_choice, check_range
from gapscope.base.random_streams import resolve_generator
from gapscope.base.samples import Samples
from gapscope.batch_norm.gamma_decay.accumulators import LayerAccumulator, Sampler, even_loss_excess
from gapscope.batch_norm.gamma_decay.curvature import (
    EvaluationData,
    derivatives_along,
    hessian_directions,
    output_gradient,
    prepare,
    tapped_forward,
)
from gapscope.batch_norm.gamma_decay.layer_decay import GammaDecay
from gapscope.batch_norm.norm_layers import batch_norm_layers, in_forward_order
from gapscope.inspection.losses import Loss, sample_losses
from gapscope.inspection.outputs import (
    BACKWARD_CHUNK_SIZE,
    device_of,
    inspection_mode,
    prepare_inputs,
    samples_per_pass,
)
from gapscope.inspection.sample_layout import certain_layouts, sample_layouts
from gapscope.results.estimate import Estimate

Curvature = Literal["gauss_newton", "squared_score"]
Covariance = Literal["full", "diagonal"]


class DecaySums:
    """Sums over the samples, from one pass, that determine the decay of all layers at any batch size.

    Args:
        network: The network, in inspection mode.
        samples: The samples.
        layers: As for `gamma_decay`.
        curvature: As for `gamma_decay`.
        covariance: As for `gamma_decay`.
        replacement: As for `gamma_decay`.
        loss: As for `gamma_decay`.
        draws: As for `gamma_decay`.
        chunk_size: As for `gamma_decay`.
        generator: Source of random directions, then of noise.
    """

    def __init__(
        self,
        network: nn.Module,
        samples: Samples,
        *,
        layers: Sequence[str] | None = None,
        curvature: Curvature = "gauss_newton",
        covariance: Covariance = "full",
        replacement: bool = False,
        loss: Loss | None = None,
        draws: int | None = None,
        chunk_size: int | None = None,
        generator: torch.Generator,
    ) -> None:
        by_name = batch_norm_layers(network, layers)
        ordered = in_forward_order(network, by_name, prepare_inputs(network, samples.inputs[:1]))
        chunk_size = samples_per_pass(
            network, samples.inputs, chunk_size, one_pass=network, at_most=BACKWARD_CHUNK_SIZE
        )
        in_order = {name: by_name[name] for name in ordered}
        layouts = sample_layouts(network, samples.inputs, in_order, before=True)
        evaluation = EvaluationData(
            network,
            in_order,
            certain_layouts(layouts, in_order),
            samples,
            loss or sample_losses,
            chunk_size,
        )
        self.evaluation = evaluation
        self._sums = {
            name: LayerAccumulator(
                layer.num_features,
                full=covariance == "full",
                draws=draws or 1,
                device=device_of(network),
            )
            for name, layer in evaluation.layers.items()
        }
        self._losses = self._add_samples(curvature, draws, generator)
        self._samplers: dict[str, Sampler] = {}
        decays = {}
        for name, layer in evaluation.layers.items():
            gamma = torch.ones_like(layer.running_mean, dtype=torch.float64)
            if layer.weight is not None:
                gamma = layer.weight.detach().double()
            decays[name] = self._sums[name].finish(name, gamma, is_estimate=draws is not None)
        self._single_sample = GammaDecay(decays, len(samples), replacement)

    def _add_samples(self, curvature: str, draws: int | None, generator: torch.Generator) -> Tensor:
        """Add all samples to the sums, and return their losses [n]."""
        evaluation = self.evaluation
        sums = self._sums
        signs: Tensor | None = None
        losses: list[Tensor] = []
        for part, x, y in evaluation.chunks():
            outputs, taps = tapped_forward(evaluation, x)
            losses.append(evaluation.loss(outputs.detach(), y).double())
            if (
                draws is not None and signs is None
            ):  # those of all samples at once, so that chunks do not matter
                shape = draws, len(evaluation.samples), outputs.shape[1]
                signs = torch.randint(0, 2, shape, generator=generator, dtype=torch.int8) * 2 - 1
            score = output_gradient(evaluation.loss, outputs, y)
            for name, by_gamma, by_beta in derivatives_along(outputs, taps, score):
                sums[name].add(taps[name].normalized, by_gamma, by_beta)
            directions: Iterable[Tensor] = [score]
            if curvature != "squared_score":
                chunk_signs = None if signs is None else signs[:, part]
                directions = hessian_directions(evaluation.loss, outputs, y, chunk_signs)
            for number, direction in enumerate(directions):
                # without random signs the directions of a sample make up one curvature
                draw = 0 if signs is None else number
                for name, by_gamma, by_beta in derivatives_along(outputs, taps, direction):
                    sums[name].add_direction(draw, by_gamma, by_beta)
        return torch.cat(losses)

    def decay(self, batch_size: int) -> GammaDecay:
        """Return the decay at a batch size, without noise samples."""
        return self._single_sample.for_batch_size(batch_size)

    def sampled(
        self, name: str, batch_size: int, draws: int, generator: torch.Generator
    ) -> Estimate:
        """Return the excess of one layer at a batch size from noise samples."""
        if name not in self._samplers:
            self._samplers[name] = self._sums[name].sampler()
        return even_loss_excess(
            self.evaluation, name, self._samplers[name], self._losses,
            scale=self._single_sample.variance_factor(batch_size) ** 0.5, draws=draws, generator=generator,
        )  # fmt: skip


def check_options(
    *,
    noise_draws: int,
    curvature: str = "gauss_newton",
    covariance: str = "full",
    draws: int | None = None,
    replacement: bool = False,
) -> None:
    """Raise InvalidInput for options that `gamma_decay` does not have."""
    check_choice("curvature", curvature, get_args(Curvature))
    check_choice("covariance", covariance, get_args(Covariance))
    if draws is not None:
        check_range("draws", draws, 1)
    if noise_draws:
        check_range("noise_draws (0 for none)", noise_draws, 2)
    if curvature == "squared_score" and draws is not None:
        raise InvalidInput(
            f"Got draws={draws} with curvature='squared_score', which is exact; use draws=None."
        )


@check_arguments
def gamma_decay(
    network: nn.Module,
    data: Any,
    *,
    batch_size: int,
    layers: Sequence[str] | None = None,
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

    Batch statistics $\mu_B = \mu_P + \sigma_P a$, $\sigma_B = \sigma_P (1+s)$ act as $\gamma \to \gamma(1-s)$, $\beta
    \to \beta - \gamma a$, equally at all positions. To order 1/M the mean loss rises by $\sum_i \zeta_i \gamma_i^2$ and
    a part linear in gamma:
    $$\zeta_i = \tfrac12 [v_\sigma H_{\gamma\gamma} + v_\mu H_{\beta\beta}] + c H_{\gamma\beta}.$$
    H are second derivatives of the loss, averaged over samples; $v_\mu = \mathrm{Var}(a)$, $v_\sigma =
    \mathrm{Var}(s)$, $c = \mathrm{Cov}(a, s)$ are estimated from samples (fully connected: $1/M$, $(\rho+2)/4M$ and
    skewness/2M with the excess kurtosis $\rho$). Running statistics serve as population statistics, see
    `refresh_population`.

    The paper's theorem 1 and appendix C.4 are `covariance="diagonal"` without c and the linear part: second derivatives
    of the loss, independent channels, $v_\mu = 1/M$ and $v_\sigma = (\rho+2)/4M$. For single neurons at the optimum
    they are right within 4 % from M = 32 on. For fully connected layers they are too small, mostly since channels are
    correlated; in convolutions $1/M$ is one or two orders of magnitude too large. Eq. 4 replaces $\gamma_i^2$ by
    $\kappa\lVert\gamma_i w_i/\sigma_i\rVert^2$ with the weights $w_i$ of the layer before and the mean variance
    $\kappa$ of its input coordinates; they are equal for white inputs.

    Cost: one forward and (1 + K) backward passes over the data for K outputs, or (1 + draws).

    Reference: Luo et al. 2019, theorem 1 and appendix C.4, corrected as stated here.

    Args:
        network: Network with BatchNorm, PopulationNorm or GhostBatchNorm layers, unchanged unless stated.
        data: Inputs with targets in any form (pair of tensors, Samples, Dataset, DataLoader), used as the population.
        batch_size: Batch size M, at least 2 and below the number of samples.
        layers: Names as in `network.named_modules()`; None for all.
        curvature: "gauss_newton": second derivatives of the loss (of each sample, exact for networks that are piecewise
            linear in gamma and beta, such as ReLU networks); "squared_score": squared derivatives of the loss at the
            labels, the I(gamma) in the statement of theorem 1. Both have the same mean where the loss is the negative
            log-likelihood of the labels given the outputs (eq. 2); for a network that fits its labels "squared_score"
            is too small.
        covariance: "full": channels are correlated in noise and curvature, decay = gamma^T Z gamma with zeta on the
            diagonal of Z; "diagonal": the paper's assumption of independent channels.
        replacement: Whether batches are sampled with replacement; else all variances have the factor (n - M) / (n - 1).
        loss: Loss of each sample [n] from outputs [n, K] and targets; None for cross-entropy or squared error.
        draws: Number of random directions in output space ("gauss_newton" only); None for all directions, exact.
        noise_draws: Number of Gaussian noise samples (2 or more) per sample and layer, so that `predicted` includes all
            even orders and the kinks of ReLU networks (`LayerDecay.sampled`); 0 for the second order by Gauss-Newton.
            Each costs three forward passes per layer.
        chunk_size: Samples per pass, without effect beyond rounding; None: as many as memory allows, up to a maximum.
        generator: Source of random batches and noise; None for the same ones in every call.

    >>> layer = nn.Sequential(nn.BatchNorm1d(1, eps=0.0, dtype=torch.float64))  # loss (u - y)^2, u = -1 or 1: rho = -2
    >>> u = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    >>> round(float(gamma_decay(layer, (u, u), batch_size=10, replacement=True).decay), 6)  # 2 / (2 * 10)
    0.1
    """
    check_options(noise_draws=noise_draws, curvature=curvature, covariance=covariance, draws=draws)
    network, samples = prepare(network, data, loss, layers)
    generator = resolve_generator(generator)
    with inspection_mode(network):
        sums = DecaySums(
            network, samples, layers=layers, curvature=curvature, covariance=covariance, replacement=replacement,
            loss=loss, draws=draws, chunk_size=chunk_size, generator=generator,
        )  # fmt: skip
        decay = sums.decay(batch_size)
        if not noise_draws:
            return decay
        return decay.with_sampled(
            {name: sums.sampled(name, batch_size, noise_draws, generator) for name in decay}
        )
