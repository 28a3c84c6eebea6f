r"""Output sensitivity of random networks and predicted losses (Forouzesh et al. 2021).

The activation $\phi$ is ReLU. At finite noise the arc-cosine kernel of degree 1 (Cho and Saul 2009) applies: for a pair
of inputs and Gaussian weights the pre-activations z, z' of a layer are Gaussian, with second moments u, v and angle t.
With $q = \sqrt{uv} (\sin t - t \cos t) / \pi$ and the mixed moment $c = \sqrt{uv} \cos t$,

.. math:: E[\phi(z) \phi(z')] = (c + q) / 2, \qquad E[(\phi(z) - \phi(z'))^2] = d / 2 - q, \qquad d = u + v - 2c.

The squared difference d is propagated itself, because the difference of nearly equal u + v and 2c would lose precision.
For small angles $q \approx \sqrt{uv} t^3 / 3 \pi$ and $d \approx \sqrt{uv} t^2$: every ReLU layer loses a fraction $2t
/ 3\pi$ of d against the formula for vanishing noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float

from gapscope.base.errors import InvalidInput, check_choice, check_range
from gapscope.theory.statistical_mechanics import as_numbers


@dataclass(frozen=True, kw_only=True)
class WeightLayer:
    """Second moments E[w^2] and E[b^2] of one weight layer, fully connected or convolutional.

    Attributes:
        fan_in: Inputs to one unit; for a convolution input channels times kernel size.
        weights: Second moment E[w^2], 0 or larger.
        biases: Second moment E[b^2], 0 or larger.
    """

    fan_in: int
    weights: float = 1.0
    biases: float = 0.0

    def __post_init__(self) -> None:
        check_range("fan_in", self.fan_in, 1)
        check_range("weights", self.weights, 0)
        check_range("biases", self.biases, 0)


def fully_connected_layers(
    n_inputs: int, hidden: Sequence[int], *, weights: float = 1.0, biases: float = 1.0
) -> list[WeightLayer]:
    """Return the weight layers of a fully connected network, standard normal by default.

    `hidden` are the widths of the hidden layers, `weights` and `biases` second moments. The last layer is the output.

    Args:
        n_inputs: Number of inputs D.
        hidden: Widths of the hidden layers; empty for a linear network.
        weights: Second moment E[w^2] of all weights, 0 or larger.
        biases: Second moment E[b^2] of all biases, 0 or larger.
    """
    return [
        WeightLayer(fan_in=width, weights=weights, biases=biases) for width in (n_inputs, *hidden)
    ]


def check_layers(layers: Sequence[WeightLayer], n_outputs: int) -> None:
    """Raise InvalidInput unless there are a layer and an output."""
    if not layers:
        raise InvalidInput(
            "layers must hold one weight layer or more; got none. Use fully_connected_layers(n_inputs, [])."
        )
    check_range("n_outputs", n_outputs, 1)


def expected_sensitivity(
    layers: Sequence[WeightLayer], n_outputs: int, *, noise_std: float = 0.1
) -> float:
    r"""Compute the expected output sensitivity of random networks for vanishing noise.

    .. math:: S = \frac{\sigma^2}{K} \, 2^{-M} \prod_{i=1}^{M+1} E[w_i^2] \, n_i,
              \qquad \text{standard normal ReLU networks of width } H:\quad
              S = \frac{D}{K} \Big( \frac{H}{2} \Big)^M \sigma^2

    M hidden layers; $n_i$ is the fan-in of layer i, so $n_1 = D$ (Forouzesh, Salehi and Thiran 2021, eq. 10 for the
    second form). Exact in expectation for any width, for independent weights and biases with distributions symmetric
    around 0, and noise so small that no unit switches, also for convolutions without padding and pooling. Individual
    networks deviate from it by 15 % (relative standard deviation) at H = 300 and M = 2, by 50 % at H = 30 and M = 4.
    At finite noise it is too large, by 4 to 25 % at noise_std = 0.1 for M = 1 to 8.

    Args:
        layers: All weight layers, output layer last.
        n_outputs: Number of outputs K.
        noise_std: Standard deviation of the input noise.

    >>> expected_sensitivity(fully_connected_layers(12, [6, 6]), 3, noise_std=1.0)  # 12 / 3 * (6 / 2)^2
    36.0
    """
    check_layers(layers, n_outputs)
    check_range("noise_std", noise_std, 0)
    factors = math.prod(layer.weights * layer.fan_in for layer in layers)
    return noise_std**2 / n_outputs * 0.5 ** (len(layers) - 1) * factors


def bias_contribution(layers: Sequence[WeightLayer], n_outputs: int) -> float:
    r"""Compute Sigma, the biases' part of the variance of an output over networks, over K.

    .. math:: \Sigma = \frac1K \sum_{l=1}^{L} E[b_l^2] \prod_{i=l+1}^{L} \tfrac12 E[w_i^2] \, n_i

    Forouzesh, Salehi and Thiran 2021, eq. 8, corrected: L = M + 1 counts all weight layers, including the output layer,
    and $n_i$ is the fan-in of layer i (printed: $H_i$ and L = M). Exact in expectation at any width, for independent
    weights and biases with distributions symmetric around 0.

    Args:
        layers: All weight layers, output layer last.
        n_outputs: Number of outputs K.
    """
    check_layers(layers, n_outputs)
    total = 0.0
    factor = 1.0
    for layer in reversed(layers):
        total += layer.biases * factor
        factor *= 0.5 * layer.weights * layer.fan_in
    return total / n_outputs


def predicted_variance(
    sensitivity: float,
    *,
    n_outputs: int,
    input_second_moment: float,
    noise_std: float = 0.1,
    bias_part: float = 0.0,
    of: Literal["probabilities", "outputs"] = "probabilities",
) -> float:
    r"""Predict the variance of predictions over networks from the output sensitivity.

    .. math:: V = S \frac{E[x^2]}{\sigma^2} + \Sigma, \qquad
              \sum_k \mathrm{Var}_\theta f_k = K^2 V, \qquad
              \sum_k \mathrm{Var}_\theta F_k \approx \frac{K - 1}{K} V

    The last form (`of="probabilities"`) is eq. 7 of Forouzesh, Salehi and Thiran 2021, for classifiers. The middle one
    (`of="outputs"`) is for raw outputs, valid in expectation for random networks with vanishing noise. The last form
    linearizes the softmax at equal logits, so it needs logits far below 1: its error is 10 % at He initialization, and
    on classifiers trained on digits it was 20 to ten million times too high, because probabilities saturate.

    Args:
        sensitivity: S, measured or from `expected_sensitivity`.
        n_outputs: Number of outputs K.
        input_second_moment: E[x^2], the mean square of an input entry (not its variance).
        noise_std: Standard deviation of the noise with which S was measured.
        bias_part: Sigma of `bias_contribution`; the paper's figures omit it.
        of: "probabilities" (classification) or raw "outputs" (regression).

    >>> predicted_variance(4.0, n_outputs=1, input_second_moment=0.5, noise_std=2.0, of="outputs")  # 4 * 0.5 / 2^2
    0.5
    """
    check_choice("of", of, ("probabilities", "outputs"))
    check_range("sensitivity", sensitivity, 0)
    check_range("n_outputs", n_outputs, 1)
    check_range("input_second_moment", input_second_moment, 0)
    check_range("noise_std", noise_std, 0, low_open=True)
    variance = sensitivity * input_second_moment / noise_std**2 + bias_part
    return variance * ((n_outputs - 1) / n_outputs if of == "probabilities" else n_outputs**2)


def predicted_loss(
    sensitivity: float,
    *,
    n_outputs: int,
    input_second_moment: float,
    noise_std: float = 0.1,
    bias_part: float = 0.0,
) -> float:
    r"""Predict the test cross-entropy (nats) of an interpolating classifier from sensitivity.

    .. math:: L \approx \sqrt{ \frac12 \, \frac{K-1}{K} \Big( S \frac{E[x^2]}{\sigma^2} + \Sigma \Big) }

    Forouzesh, Salehi and Thiran 2021, eq. 9; the authors plot it with Sigma = 0.

    A scaling law: L is proportional to the root of S, but the constant is not 1. It was 0.3 to 0.7 on small networks
    trained on digits, 0.9 to 1.2 in the authors' runs on CIFAR-10. The law does not rank networks by their error rate.
    For the arguments see `predicted_variance`.

    Args:
        sensitivity: S, measured or from `expected_sensitivity`.
        n_outputs: Number of classes K.
        input_second_moment: E[x^2], the mean square of an input entry (not its variance).
        noise_std: Standard deviation of the noise with which S was measured.
        bias_part: Sigma of `bias_contribution`; the paper's figures omit it.
    """
    variance = predicted_variance(
        sensitivity,
        n_outputs=n_outputs,
        input_second_moment=input_second_moment,
        noise_std=noise_std,
        bias_part=bias_part,
    )
    return math.sqrt(variance / 2)


Array = Float[np.ndarray, "..."]


def _arc_cosine_term(u: Array, v: Array, w: Array, d: Array) -> Array:
    """Return q of pairs with second moments u and v, w = u - v, and squared difference d."""
    size = np.sqrt(u * v)
    is_positive = size > 0
    # 2 sin^2(t/2) = 1 - cos t = (d - (sqrt u - sqrt v)^2) / 2 sqrt(uv). To avoid cancellation (sqrt u - sqrt v)^2 is
    # computed as w^2 / (sqrt u + sqrt v)^2, and sin t - t cos t of small angles by its series.
    square = np.square(w) / np.where(is_positive, np.square(np.sqrt(u) + np.sqrt(v)), 1.0)
    half_sine = np.sqrt(np.clip((d - square) / np.where(is_positive, 4 * size, 1.0), 0.0, 1.0))
    t = 2 * np.arcsin(half_sine)
    series = t**3 / 3 - t**5 / 30
    return size * np.where(t < 1e-2, series, np.sin(t) - t * np.cos(t)) / np.pi


def _squared_difference(
    a: Array, b: Array, w: Array, d: Array, layers: Sequence[WeightLayer]
) -> Array:
    """Return E(f(z) - f(z'))^2 for |z|^2 = a, |z'|^2 = b, a - b = w and |z - z'|^2 = d."""
    first, *later_layers = layers
    u = first.weights * a + first.biases
    v = first.weights * b + first.biases
    w = first.weights * w
    d = first.weights * d
    for layer in later_layers:
        # ReLU halves second moments, and a layer multiplies sums over its inputs by `factor`; biases cancel in w and d.
        factor = layer.weights * layer.fan_in
        d = factor * (d / 2 - _arc_cosine_term(u, v, w, d))
        u = factor / 2 * u + layer.biases
        v = factor / 2 * v + layer.biases
        w = factor / 2 * w
    return d


def _mean_shift(x: Array, noisy: Array, layers: Sequence[WeightLayer]) -> float:
    """Return E(mean over pairs of f(noisy) - f(x))^2 of one output."""
    points = np.concatenate([x, noisy])
    signs = np.repeat([-1.0, 1.0], len(x)) / len(x)
    squares = np.square(points).sum(1)
    total = 0.0
    # The signs s sum to 0, so E(sum_i s_i f_i)^2 = -1/2 sum_ij s_i s_j E(f_i - f_j)^2; 256 rows i at a time.
    for start in range(0, len(points), 256):
        rows = slice(start, start + 256)
        a = squares[rows, None]
        d = np.clip(a + squares - 2 * points[rows] @ points.T, 0.0, None)
        differences = _squared_difference(a, squares, a - squares, d, layers)
        total -= 0.5 * float(signs[rows] @ differences @ signs)
    return total


def finite_noise_sensitivity(
    x: Float[np.ndarray, "n d"],
    noise: Float[np.ndarray, "n d"],
    layers: Sequence[WeightLayer],
    n_outputs: int,
    *,
    centred: bool = True,
) -> float:
    r"""Compute the expected output sensitivity of random networks on given inputs and noise.

    With m the mean over outputs of f(x + noise) - f(x), the result is $E_\theta$ of the population variance of m over
    the pairs, which the measure `output_sensitivity` estimates. `centred=False` returns the second moment
    $E_\theta[m^2]$ instead, at the cost of n rather than n^2 kernel entries; at vanishing noise it is
    `expected_sensitivity`.

    For fully connected networks with Gaussian weights and biases of mean 0. Exact in expectation for one hidden layer
    of any width, and for infinitely wide layers; otherwise the error is of the order M / H, because the moments of a
    layer of H units fluctuate (simulations with H of 30 and more agreed within their error of 3 %).

    Args:
        x: Inputs [n, d].
        noise: Noise [n, d] added to each input.
        layers: All weight layers, output layer last.
        n_outputs: Number of outputs K.
        centred: Whether to return the variance over the pairs, or their second moment.

    Raises:
        InvalidInput: Shapes do not fit together.

    >>> x, noise = np.array([[1.0], [1.0]]), np.array([[-2.0], [2.0]])
    >>> layers = fully_connected_layers(1, [], biases=0)
    >>> finite_noise_sensitivity(x, noise, layers, 1)  # f(x) = w x: Var(-2 w, 2 w) = 4 w^2
    4.0
    """
    check_layers(layers, n_outputs)
    x = as_numbers("x", x)
    noise = as_numbers("noise", noise)
    check_range("number of samples", len(x), 1)
    if x.shape != noise.shape or x.ndim != 2 or x.shape[1] != layers[0].fan_in:
        raise InvalidInput(
            f"x and noise must both have shape [n, {layers[0].fan_in}], the first layer's fan-in; "
            f"got {list(x.shape)} and {list(noise.shape)}. Flatten images to rows."
        )
    noisy = x + noise
    a = np.square(x).sum(1)
    b = np.square(noisy).sum(1)
    w = -(noise * (x + noisy)).sum(1)
    d = np.square(noise).sum(1)
    second_moment = float(_squared_difference(a, b, w, d, layers).mean())
    if centred:
        second_moment -= _mean_shift(x, noisy, layers)
    return second_moment / n_outputs
