"""Output sensitivity: variance of the outputs' shift under input noise."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, NotYetSupported, check_choice, check_range
from gapscope.base.random_streams import resolve_generator
from gapscope.base.user_warnings import warn_user
from gapscope.gradients.backward import draw_probe
from gapscope.inspection.counted_outputs import counted_of
from gapscope.inspection.independence import check_sample_independence
from gapscope.inspection.outputs import measurement_mode
from gapscope.measures._forward import FloatInputs, number_of_outputs
from gapscope.measures._noise import NOISE, SPACES, Space, continuous_inputs, output_shifts
from gapscope.measures.input_jacobian_norm import (
    squared_jacobian_norms,
    squared_products,
)
from gapscope.measures.registry import Sampling, ScalarInfo, register_measure
from gapscope.results.estimate import Estimate


def _warn_if_outputs_cancel(mean_output: float, per_output: float, n_outputs: int) -> None:
    """Warn if the mean output moves far less than independent outputs would."""
    # float32 has about seven digits, of which four remain
    if n_outputs * mean_output < 1e-3 * per_output:
        warn_user(
            f"S is the variance of the mean output, here {mean_output:.2g}, far below {per_output:.2g} of a single "
            "output. The output layer is centred, or nearly so. Use per_output=True.",
        )


def _weights_of_mean(network: nn.Module, n: int, k: int) -> Float[Tensor, "n k"]:
    """Return the weights by which outputs that count are averaged."""
    counted = counted_of(network, k, torch.device("cpu"))
    if counted is None:
        return torch.full((n, k), 1 / k, dtype=torch.float64)
    return counted / counted.sum(1, keepdim=True).clamp(min=1).double()


def _sampled_sensitivity(
    network: nn.Module, shifts: Iterable[Float[Tensor, "n k"]], per_output: bool
) -> Estimate:
    """Return the variance over draws and samples, of the mean output or averaged over outputs."""
    draws = []
    for shift in shifts:
        mean = (shift * _weights_of_mean(network, *shift.shape)).sum(1, keepdim=True)
        if not draws and not per_output:
            _warn_if_outputs_cancel(
                mean.square().mean().item(), shift.square().mean().item(), shift.shape[1]
            )
        draws.append(shift if per_output else mean)
    values = torch.stack(draws)  # [draws, n, k]
    if values.shape[0] * values.shape[1] < 2:
        raise InvalidInput(
            "Got one noisy sample; a variance needs at least 2. Pass more inputs or draws=2."
        )
    influence = (values - values.mean((0, 1))).square().mean(2)
    # the draws of one sample are one cluster; those of a single sample are independent
    clusters = influence[:, 0]
    if values.shape[1] > 1:
        clusters = influence.mean(0)
    return Estimate(influence.mean().item(), clusters.std().item() / math.sqrt(len(clusters)))


def _zero_noise_limit(
    network: nn.Module, x: Tensor, space: Space, per_output: bool, chunk_size: int | None
) -> float:
    """Return the limit of S / noise_std^2 for vanishing noise."""
    k = number_of_outputs(network, x)
    if per_output:
        return squared_jacobian_norms(network, x, space, chunk_size).mean().item() / k
    # one pass for the gradient of the mean output, and one for random signs, whose mean square is that of all outputs
    generator = resolve_generator(None, NOISE, x.device)
    signs = draw_probe("rademacher", len(x), k, generator)[None].double()
    mean = _weights_of_mean(network, len(x), k)[None].to(signs)
    squares = squared_products(network, x, torch.cat([mean, signs]), space, chunk_size).mean(1)
    _warn_if_outputs_cancel(squares[0].item(), squares[1].item() / k, k)
    return squares[0].item()


@register_measure(
    title="shift of the outputs under input noise",
    numbers=ScalarInfo(
        "squared output units", "lower", "variance over samples and noise of the mean over outputs"
    ),
    cost_class="forward",
    sampling=Sampling("own", 128, lambda k: 2),
    reference="Forouzesh, Salehi and Thiran 2021, eq. 2",
)
def output_sensitivity(
    network: nn.Module,
    x: FloatInputs,
    *,
    noise_std: float = 0.1,
    draws: int = 1,
    space: Space = "logits",
    per_output: bool = False,
    method: Literal["sampled", "zero_noise"] = "sampled",
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
) -> Estimate:
    r"""Compute the output sensitivity S: variance of the mean output's shift under input noise.

    .. math:: S = \mathrm{Var}_{x, \varepsilon}\Big[ \frac1K \sum_{k=1}^K \big( f_k(x + \varepsilon) - f_k(x) \big)
              \Big], \qquad \varepsilon \sim N(0, \sigma^2 I)

    The population variance, over samples and draws jointly, of the mean over outputs (without those at positions that
    have no label). The mean of the variances of the
    outputs, `per_output=True`, is K S for independent output rows, as after random initialization. Probabilities sum
    to 1, so after the softmax S is 0 and the per-output form is used. In logits S measures only the direction that no
    probability depends on: it is 0 for a last layer with a mean row of 0, and falls in long training by SGD with weight
    decay. A warning is given if the mean output shifts far less than the outputs.

    The standard error is that of a variance by the delta method, $\mathrm{sd}_i[\frac1m \sum_d (m_{id} - \bar m)^2] /
    \sqrt n$, with one cluster per sample (sd divides by n - 1, S by n). It covers the sampling of inputs as well as of
    noise.

    Args:
        network: Network that returns raw outputs [n, K]; logits if labels are needed.
        x: Inputs [n, ...], usually the training data.
        noise_std: Standard deviation of the noise on every input entry.
        draws: Noise samples per input (1 in the paper).
        space: "logits", or "probabilities" for the per-output form after the softmax.
        per_output: Whether to average the variances of the outputs in place of the variance of their mean.
        method: "sampled", or "zero_noise" for the exact limit $\sigma^2 \cdot \frac1n \sum_i \lVert \nabla_x \bar
            f(x_i) \rVert^2$ (per output: $\frac{\sigma^2}{K n} \sum_i \lVert J_i \rVert_F^2$), for noise that float32
            rounds away, below about 1e-4 of the inputs.
        generator: Source of random numbers; None for the same numbers in every call.
        chunk_size: Samples per pass, without effect beyond rounding; None: as many as memory allows, up to a maximum.

    Raises:
        NotYetSupported: Some positions have no label, and outputs are not averaged.

    >>> layer = nn.Linear(4, 2, bias=False)
    >>> _ = nn.init.constant_(layer.weight, 1.5)
    >>> output_sensitivity(layer, torch.zeros(5, 4), method="zero_noise")  # 0.1^2 * 4 * 1.5^2
    0.09
    """
    check_choice("space", space, SPACES)
    check_choice("method", method, ("sampled", "zero_noise"))
    check_range("noise_std", noise_std, 0, low_open=True)
    check_range("draws", draws, 1)
    per_output = per_output or space == "probabilities"
    if per_output and getattr(network, "counted", None) is not None:
        raise NotYetSupported(
            "Positions without a label are omitted in the mean output alone; got per_output=True or probabilities."
        )
    with measurement_mode(network) as network:
        x = continuous_inputs(network, x)
        check_sample_independence(network, x)
        if method == "zero_noise":
            limit = _zero_noise_limit(network, x, space, per_output, chunk_size)
            return Estimate(noise_std**2 * limit)
        shifts = output_shifts(network, x, noise_std, draws, space, generator, chunk_size)
        return _sampled_sensitivity(network, shifts, per_output)
