"""Output sensitivity against sampled networks, for vanishing and finite noise."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gapscope.measures.bias_variance import bias_variance
from gapscope.measures.output_sensitivity import output_sensitivity
from gapscope.theory.sensitivity import (
    WeightLayer,
    bias_contribution,
    expected_sensitivity,
    finite_noise_sensitivity,
    fully_connected_layers,
    predicted_loss,
    predicted_variance,
)


def random_networks(n: int, widths: list[int], *, weight_std=lambda fan_in: 1.0, bias_std=1.0):
    generator = torch.Generator().manual_seed(0)
    for _ in range(n):
        layers: list[nn.Module] = []
        for fan_in, fan_out in itertools.pairwise(widths):
            linear = nn.Linear(fan_in, fan_out, dtype=torch.float64)
            nn.init.normal_(linear.weight, std=weight_std(fan_in), generator=generator)
            nn.init.normal_(linear.bias, std=bias_std, generator=generator)
            layers += [linear, nn.ReLU()]
        yield nn.Sequential(*layers[:-1])


def assert_mean_is(expected: float, values: list[float], at_most: float) -> None:
    """Assert that the mean of the values is `expected` within 3 small standard errors."""
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    assert error < at_most * expected
    assert abs(np.mean(values) - expected) < 3 * error


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("depth", "n_outputs", "n_inputs", "width"),
    [(0, 10, 64, 1), (1, 1, 64, 100), (2, 10, 64, 100), (4, 5, 64, 60)],
)
@pytest.mark.parametrize("bias_std", [0.0, 1.0])
def test_eq_10_at_small_noise_with_and_without_biases(depth, n_outputs, n_inputs, width, bias_std):
    x = torch.randn(60, n_inputs, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    networks = random_networks(150, [n_inputs, *[width] * depth, n_outputs], bias_std=bias_std)
    measured = [float(output_sensitivity(network, x, noise_std=1e-3)) for network in networks]
    assert_mean_is(n_inputs / n_outputs * (width / 2) ** depth * 1e-6, measured, at_most=0.05)
    layers = fully_connected_layers(n_inputs, [width] * depth, biases=bias_std**2)
    assert_mean_is(expected_sensitivity(layers, n_outputs, noise_std=1e-3), measured, at_most=0.05)


@pytest.mark.thorough
def test_convolutions_count_by_their_fan_in():
    x = torch.rand(30, 2, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    generator = torch.Generator().manual_seed(2)
    measured = []
    for _ in range(200):
        network = nn.Sequential(
            nn.Conv2d(2, 8, 3),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32, 5),
        ).double()
        for parameter in network.parameters():
            nn.init.normal_(parameter, generator=generator)
        measured.append(float(output_sensitivity(network, x, method="zero_noise")))
    layers = [WeightLayer(fan_in=n) for n in (2 * 9, 8 * 9, 32)]
    assert_mean_is(expected_sensitivity(layers, 5), measured, at_most=0.05)


@pytest.mark.parametrize(
    ("width", "after", "loss", "over_eq_10", "eq_9", "loss_over_eq_9"),
    [
        (200, 1.271e8, 35511, 0.41, 38911, 0.88),
        (300, 6.083e8, 92611, 0.39, 85136, 1.04),
        (500, 5.484e9, 317055, 0.46, 255626, 1.19),
    ],
)
def test_the_authors_stored_runs(width, after, loss, over_eq_10, eq_9, loss_over_eq_9):
    expected = expected_sensitivity(fully_connected_layers(3072, [width] * 4), 10)
    assert after / expected == pytest.approx(over_eq_10, abs=0.01)
    assert predicted_loss(after, n_outputs=10, input_second_moment=0.2648) == pytest.approx(
        eq_9, rel=1e-3
    )
    # with the second moment of the CIFAR-10 pixels themselves
    ratio = loss / predicted_loss(after, n_outputs=10, input_second_moment=0.2874)
    assert ratio == pytest.approx(loss_over_eq_9, abs=0.01)


def outputs_of(networks, x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.stack([network(x) for network in networks])


@pytest.mark.parametrize("bias_std", [0.0, 0.5])
@pytest.mark.parametrize(("hidden", "n_outputs"), [([], 10), ([60, 90], 10), ([80], 1)])
def test_the_variance_of_raw_outputs_with_sigma_over_all_weight_layers(hidden, n_outputs, bias_std):
    widths = [50, *hidden, n_outputs]
    x = torch.rand(40, 50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    networks = random_networks(
        600, widths, weight_std=lambda fan_in: fan_in**-0.5, bias_std=bias_std
    )
    measured = bias_variance(outputs_of(networks, x), torch.zeros(40, n_outputs)).variance
    layers = [WeightLayer(fan_in=n, weights=1 / n, biases=bias_std**2) for n in widths[:-1]]
    predicted = predicted_variance(
        expected_sensitivity(layers, n_outputs),
        n_outputs=n_outputs,
        input_second_moment=x.square().mean().item(),
        bias_part=bias_contribution(layers, n_outputs),
        of="outputs",
    )
    assert measured == pytest.approx(predicted, rel=0.1)


def probability_variance(weight_std, bias_std: float) -> tuple[float, float]:
    """Measured and predicted (eq. 7) variance of the probabilities of 64-100-100-10 networks."""
    x = torch.rand(40, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    networks = random_networks(200, [64, 100, 100, 10], weight_std=weight_std, bias_std=bias_std)
    measured = bias_variance(outputs_of(networks, x).softmax(2), torch.zeros(40, 10)).variance
    layers = [
        WeightLayer(fan_in=n, weights=weight_std(n) ** 2, biases=bias_std**2)
        for n in (64, 100, 100)
    ]
    predicted = predicted_variance(
        expected_sensitivity(layers, 10),
        n_outputs=10,
        input_second_moment=x.square().mean().item(),
        bias_part=bias_contribution(layers, 10),
    )
    return measured, predicted


@pytest.mark.thorough
def test_eq_7_holds_for_small_logits_only():
    small, predicted = probability_variance(lambda fan_in: (0.3 / fan_in) ** 0.5, 0.1)
    assert small == pytest.approx(predicted, rel=0.1)
    he, predicted = probability_variance(lambda fan_in: (2 / fan_in) ** 0.5, 0.0)
    assert he == pytest.approx(predicted, rel=0.25)
    standard_normal, predicted = probability_variance(lambda fan_in: 1.0, 1.0)
    assert standard_normal < 1 < 1000 < predicted


def test_a_single_output_has_no_variance_of_probabilities():
    options = {"n_outputs": 1, "input_second_moment": 0.5, "noise_std": 0.1, "bias_part": 2.0}
    assert predicted_variance(0.02, **options) == 0
    assert predicted_variance(0.02, of="outputs", **options) == pytest.approx(0.02 * 0.5 / 0.01 + 2)


def test_bias_contribution_multiplies_by_the_later_layers():
    layers = [
        WeightLayer(fan_in=9, weights=5.0, biases=2.0),
        WeightLayer(fan_in=4, weights=3.0, biases=7.0),
        WeightLayer(fan_in=6, weights=0.5, biases=1.0),
    ]
    expected = (2.0 * (3 * 4 / 2) * (0.5 * 6 / 2) + 7.0 * (0.5 * 6 / 2) + 1.0) / 10
    assert bias_contribution(layers, 10) == pytest.approx(expected)


def pairs(n: int, d: int, noise_std: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.random((n, d)), noise_std * rng.normal(size=(n, d))


def simulated(x, noise, layers, n_outputs, n_networks):
    """Variance and second moment over pairs of the mean output's shift, one per network."""
    weight_std = {layer.fan_in: layer.weights**0.5 for layer in layers}
    widths, bias_std = [*(layer.fan_in for layer in layers), n_outputs], layers[0].biases ** 0.5
    networks = list(
        random_networks(n_networks, widths, weight_std=weight_std.get, bias_std=bias_std)
    )
    before, after = (outputs_of(networks, torch.from_numpy(inputs)) for inputs in (x, x + noise))
    shifts = (after - before).mean(2)
    return shifts.var(1, unbiased=False).numpy(), shifts.square().mean(1).numpy()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("hidden", "n_outputs", "noise_std"),
    # one hidden layer: exact at any width
    [([3], 10, 0.1), ([100, 100], 10, 0.1), ([100, 100, 100, 100], 5, 0.1), ([100, 60], 1, 1.0)],
)
def test_equals_the_mean_over_simulated_networks(hidden, n_outputs, noise_std):
    x, noise = pairs(50, 64, noise_std)
    layers = [WeightLayer(fan_in=n, weights=1.5 / n, biases=0.3) for n in (64, *hidden)]
    variances, moments = simulated(x, noise, layers, n_outputs, 600)
    for values, centred in [(variances, True), (moments, False)]:
        theory = finite_noise_sensitivity(x, noise, layers, n_outputs, centred=centred)
        error = values.std() / np.sqrt(len(values))
        assert error < 0.06 * theory
        assert abs(values.mean() - theory) < 3 * error


@pytest.mark.parametrize("noise_std", [1e-3, 1e-6, 1e-9])
def test_approaches_the_formula_for_vanishing_noise_without_rounding(noise_std):
    x, noise = pairs(200, 784, noise_std)
    layers = fully_connected_layers(784, [100] * 3)
    ratio = finite_noise_sensitivity(x, noise, layers, 10, centred=False) / expected_sensitivity(
        layers, 10, noise_std=np.sqrt(np.square(noise).mean())
    )
    assert 1 - 4 * noise_std < ratio <= 1 + 1e-12


def test_the_arc_cosine_kernel_in_its_textbook_form():
    rng = np.random.default_rng(0)
    x, noise = rng.normal(size=(1, 5)), rng.normal(size=(1, 5))
    b, width, n_outputs = 0.7, 30, 4
    u, v = np.square(x).sum() + b, np.square(x + noise).sum() + b
    c = (x * (x + noise)).sum() + b
    for _ in range(3):
        r = c / np.sqrt(u * v)
        t = np.arccos(r)
        k = np.sqrt(u * v) / (2 * np.pi) * (np.sin(t) + (np.pi - t) * r)
        u, v, c = width * u / 2 + b, width * v / 2 + b, width * k + b
    layers = fully_connected_layers(5, [width] * 3, biases=b)
    value = finite_noise_sensitivity(x, noise, layers, n_outputs, centred=False)
    assert value == pytest.approx((u + v - 2 * c) / n_outputs, rel=1e-10)


def test_more_pairs_than_one_block_and_zero_inputs_change_nothing():
    x, noise = pairs(300, 4, 0.5)
    x[0] = noise[0] = 0.0
    layers = fully_connected_layers(4, [10], biases=0)
    variances, _ = simulated(x, noise, layers, 2, 400)
    value = finite_noise_sensitivity(x, noise, layers, 2)
    assert abs(variances.mean() - value) < 3 * variances.std() / 20
    order = np.random.default_rng(1).permutation(300)
    assert finite_noise_sensitivity(x[order], noise[order], layers, 2) == pytest.approx(
        value, rel=1e-12
    )
