r"""Closed forms of output sensitivity and predicted losses (Forouzesh et al. 2021).

The activation is positive homogeneous, $\phi(z) = \alpha z$ for z > 0 and $\beta z$ otherwise: ReLU is (1, 0), a leaky
ReLU (1, 0.01), no activation (1, 1). It enters the formulas as $g = (\alpha^2 + \beta^2) / 2$.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from gapscope.base.errors import InvalidInput, check_choice, check_range

Slopes = tuple[float, float]
RELU: Slopes = (1.0, 0.0)


@dataclass(frozen=True, kw_only=True)
class WeightLayer:
    """Moments of one weight layer, fully connected or convolutional.

    Attributes:
        fan_in: Number of inputs to one unit; for a convolution input channels times kernel size.
        weights: Second moment of the weights, E[w^2], their mean included.
        biases: Second moment of the biases, 0 without biases.
    """

    fan_in: int
    weights: float = 1.0
    biases: float = 0.0

    def __post_init__(self) -> None:
        check_range("fan_in", self.fan_in, 1)
        check_range("weights", self.weights, 0)
        check_range("biases", self.biases, 0)

    @classmethod
    def measured(cls, weight: Any, bias: Any = None) -> WeightLayer:
        """Return the layer with the mean squares of actual weights [out, in, ...] and biases.

        >>> WeightLayer.measured(np.full((2, 3), 2.0), np.array([1.0, 0.0]))
        WeightLayer(fan_in=3, weights=4.0, biases=0.5)
        """
        weight = np.asarray(weight, dtype=np.float64)
        moment = 0.0 if bias is None else float(np.square(np.asarray(bias, dtype=np.float64)).mean())
        return cls(fan_in=math.prod(weight.shape[1:]), weights=float(np.square(weight).mean()), biases=moment)


def fully_connected_layers(
    n_inputs: int, hidden: Sequence[int], *, weights: float = 1.0, biases: float = 1.0
) -> list[WeightLayer]:
    """Return the weight layers of a fully connected network, standard normal by default.

    Args:
        n_inputs: Number of inputs D.
        hidden: Widths of the hidden layers, possibly none.
        weights: Second moment of all weights.
        biases: Second moment of all biases.

    Returns:
        One layer more than there are hidden layers; the last one gives the outputs.

    >>> [layer.fan_in for layer in fully_connected_layers(784, [500, 300])]
    [784, 500, 300]
    """
    return [WeightLayer(fan_in=width, weights=weights, biases=biases) for width in (n_inputs, *hidden)]


def gain(slopes: Slopes) -> float:
    r"""Return the gain $g = (\alpha^2 + \beta^2) / 2$ of a squared signal."""
    alpha, beta = slopes
    return (alpha**2 + beta**2) / 2


def check_layers(layers: Sequence[WeightLayer], n_outputs: int) -> None:
    """Raise InvalidInput unless there are a layer and an output."""
    if not layers:
        raise InvalidInput(
            "layers must hold one weight layer or more; got none. Use fully_connected_layers(n_inputs, [])."
        )
    check_range("n_outputs", n_outputs, 1)


def expected_sensitivity(
    layers: Sequence[WeightLayer], n_outputs: int, *, noise_std: float = 0.1, slopes: Slopes = RELU
) -> float:
    r"""Compute the expected output sensitivity of random networks for vanishing noise.

    .. math:: S = \frac{\sigma^2}{K} \, g^M \prod_{i=1}^{M+1} E[w_i^2] \, n_i,
              \qquad \text{standard normal ReLU networks of width } H:\quad
              S = \frac{D}{K} \Big( \frac{H}{2} \Big)^M \sigma^2

    M hidden layers; $n_i$ is the fan-in of layer i, so $n_1 = D$ (Forouzesh, Salehi and Thiran 2021, eq. 10 for the
    second form; there "M layers" means M hidden layers). The size of the biases does not matter.

    Valid: exact in expectation for any width, for independent weights and biases with distributions symmetric around
    0, for noise so small that no unit switches. Convolutions are included where there is neither padding nor pooling.
    One network scatters around it: by 15 % (relative standard deviation) at H = 300 and M = 2, by 50 % at H = 30 and
    M = 4. At finite noise it is an upper value: at noise_std = 0.1 on inputs in [0, 1] the truth is 0.96, 0.92, 0.89,
    0.86, 0.75 of it for M = 1, 2, 3, 4, 8, and at noise_std = 1 it is 0.74 to 0.22; `finite_noise_sensitivity` has
    the right number. For trained networks it gives the order of magnitude only: in the authors' runs with M = 4 they
    came out at 0.4 of it.

    Args:
        noise_std: Standard deviation of the input noise.

    >>> expected_sensitivity(fully_connected_layers(12, [6, 6]), 3, noise_std=1.0)  # 12 / 3 * (6 / 2)^2
    36.0
    """
    check_layers(layers, n_outputs)
    check_range("noise_std", noise_std, 0)
    factors = math.prod(layer.weights * layer.fan_in for layer in layers)
    return noise_std**2 / n_outputs * gain(slopes) ** (len(layers) - 1) * factors


def bias_contribution(layers: Sequence[WeightLayer], n_outputs: int, *, slopes: Slopes = RELU) -> float:
    r"""Compute Sigma, the biases' part of the variance of an output over networks, over K.

    .. math:: \Sigma = \frac1K \sum_{l=1}^{L} E[b_l^2] \prod_{i=l+1}^{L} g \, E[w_i^2] \, n_i

    Forouzesh, Salehi and Thiran 2021, eq. 8, with its indices set right: L = M + 1 counts all weight layers, the
    output layer included, and $n_i$ is the fan-in of layer i (printed: $H_i$ and L = M, with which the factors do not
    line up, and the output bias is missing). An empty product is 1. Exact in expectation at any width, for
    independent weights and biases with distributions symmetric around 0.

    >>> bias_contribution(fully_connected_layers(7, [4]), 1)  # output bias 1, hidden biases 1 * 4 / 2
    3.0
    """
    check_layers(layers, n_outputs)
    total, passed_on = 0.0, 1.0
    for layer in reversed(layers):
        total += layer.biases * passed_on
        passed_on *= gain(slopes) * layer.weights * layer.fan_in
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

    The last form (`of="probabilities"`) is eq. 7 of Forouzesh, Salehi and Thiran 2021, for classifiers. The middle
    one (`of="outputs"`) is for raw outputs, so for regression, where there is no softmax: for K = 1 it is V, and
    eq. 7 would be 0.

    Valid: the middle form in expectation for random networks with vanishing noise (within 5 % in simulations). The
    last form linearizes the softmax at equal logits, so it needs logits far below 1, and fails everywhere else: 10 %
    off at He initialization, and thousands of times too high for standard normal weights, where probabilities saturate
    (their variance never exceeds 1). On classifiers trained on digits it was 20 to ten million times too high.

    Args:
        sensitivity: S, measured or from `expected_sensitivity`.
        input_second_moment: E[x^2], the mean square of an input entry (not its variance).
        noise_std: Standard deviation of the noise that S was measured with.
        bias_part: Sigma of `bias_contribution`; the paper's figures omit it.
        of: "probabilities" (classification) or raw "outputs" (regression).

    Returns:
        The variance, mean over samples and sum over outputs.

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

    Valid as a scaling law, L proportional to the root of S, with a constant that is not 1: 0.3 to 0.7 on small
    networks trained on digits, 0.9 to 1.2 in the authors' runs on CIFAR-10. The steps behind it do not hold
    (`predicted_variance` and `approximate_cross_entropy` explain why). It works because the loss of a wrong prediction
    and the root of S both grow in proportion to the size of the logits. It does not order networks by their error rate:
    in the authors' runs the networks of larger L and S have the higher accuracy.

    Args:
        sensitivity: S, measured or from `expected_sensitivity`.
        input_second_moment: E[x^2], the mean square of an input entry (not its variance).
        noise_std: Standard deviation of the noise that S was measured with.
        bias_part: Sigma of `bias_contribution`.

    >>> predicted_loss(4.0, n_outputs=2, input_second_moment=1.0, noise_std=2.0)  # sqrt(1/2 * 1/2 * 4 / 2^2)
    0.5
    """
    variance = predicted_variance(
        sensitivity,
        n_outputs=n_outputs,
        input_second_moment=input_second_moment,
        noise_std=noise_std,
        bias_part=bias_part,
    )
    return math.sqrt(variance / 2)
