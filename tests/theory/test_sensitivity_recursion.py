"""The finite-noise recursion against simulated networks, its limits, and the numbers its docstrings quote."""

from __future__ import annotations

import numpy as np
import pytest

from gapscope.base.errors import InvalidInput
from gapscope.theory.sensitivity import (
    WeightLayer,
    expected_sensitivity,
    finite_noise_sensitivity,
    fully_connected_layers,
)


def pairs(n: int, d: int, noise_std: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.random((n, d)), noise_std * rng.normal(size=(n, d))


def simulated(x, noise, layers, n_outputs, n_networks, slopes, seed=0):
    """Variance and second moment over pairs of the mean output's shift, one a network."""
    rng = np.random.default_rng(seed)
    widths = [layer.fan_in for layer in layers] + [n_outputs]
    variances, moments = [], []
    for _ in range(n_networks):
        h = np.concatenate([x, x + noise])
        for i, layer in enumerate(layers):
            if i:
                h = np.where(h > 0, slopes[0] * h, slopes[1] * h)
            weight = np.sqrt(layer.weights) * rng.normal(size=(widths[i], widths[i + 1]))
            h = h @ weight + np.sqrt(layer.biases) * rng.normal(size=widths[i + 1])
        shift = (h[len(x) :] - h[: len(x)]).mean(1)
        variances.append(shift.var())
        moments.append(np.square(shift).mean())
    return np.array(variances), np.array(moments)


@pytest.mark.parametrize(
    ("hidden", "n_outputs", "noise_std", "slopes"),
    [
        ([3], 10, 0.1, (1.0, 0.0)),  # one hidden layer: exact at any width
        ([100, 100], 10, 0.1, (1.0, 0.0)),
        ([100, 100, 100, 100], 5, 0.1, (1.0, 0.0)),
        ([100, 100], 1, 1.0, (1.0, 0.0)),
        ([100, 60], 5, 1.0, (1.0, 0.2)),
        ([100], 5, 2.0, (0.5, -1.0)),
    ],
)
def test_equals_the_mean_over_simulated_networks(hidden, n_outputs, noise_std, slopes):
    x, noise = pairs(50, 64, noise_std)
    layers = [WeightLayer(fan_in=n, weights=1.5 / n, biases=0.3) for n in (64, *hidden)]
    variances, moments = simulated(x, noise, layers, n_outputs, 600, slopes)
    for values, centred in [(variances, True), (moments, False)]:
        theory = finite_noise_sensitivity(x, noise, layers, n_outputs, slopes=slopes, centred=centred)
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


def test_a_relu_layer_loses_two_thirds_of_the_angle_over_pi():
    x = np.eye(3)[:1]
    for t in (1e-2, 1e-3):
        noise = np.array([[np.cos(t) - 1, np.sin(t), 0.0]])
        layers = fully_connected_layers(3, [10], biases=0)
        before = np.square(noise).sum() * 10 / 2
        loss = 1 - finite_noise_sensitivity(x, noise, layers, 1, centred=False) / before
        assert loss == pytest.approx(2 * t / (3 * np.pi), rel=0.01)


def test_linear_networks_are_exact_at_any_noise():
    x, noise = pairs(50, 8, 5.0)
    layers = fully_connected_layers(8, [20, 20])
    value = finite_noise_sensitivity(x, noise, layers, 2, slopes=(1.0, 1.0), centred=False)
    assert value == pytest.approx(np.square(noise).sum(1).mean() * 400 / 2, rel=1e-12)
    deviations = noise - noise.mean(0)
    value = finite_noise_sensitivity(x, noise, layers, 2, slopes=(1.0, 1.0))
    assert value == pytest.approx(np.square(deviations).sum(1).mean() * 400 / 2, rel=1e-9)


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


@pytest.mark.parametrize(
    ("noise_std", "shares"), [(0.1, (0.96, 0.92, 0.89, 0.86, 0.75)), (1.0, (0.74, 0.58, 0.47, 0.39, 0.22))]
)
def test_the_shares_of_the_limit_that_are_documented(noise_std, shares):
    x, noise = pairs(400, 784, noise_std)
    for depth, share in zip((1, 2, 3, 4, 8), shares, strict=True):
        layers = fully_connected_layers(784, [100] * depth)
        limit = expected_sensitivity(layers, 10, noise_std=noise_std)
        assert finite_noise_sensitivity(x, noise, layers, 10) / limit == pytest.approx(share, abs=0.015)


def test_more_pairs_than_one_block_and_zero_inputs_change_nothing():
    x, noise = pairs(300, 4, 0.5)
    x[0] = noise[0] = 0.0
    layers = fully_connected_layers(4, [10], biases=0)
    variances, _ = simulated(x, noise, layers, 2, 400, (1.0, 0.0))
    value = finite_noise_sensitivity(x, noise, layers, 2)
    assert abs(variances.mean() - value) < 3 * variances.std() / 20
    order = np.random.default_rng(1).permutation(300)
    assert finite_noise_sensitivity(x[order], noise[order], layers, 2) == pytest.approx(value, rel=1e-12)


def test_wrong_shapes_are_named():
    layers = fully_connected_layers(3, [4])
    with pytest.raises(InvalidInput, match=r"shape \[n, 3\], the first layer's fan-in; got \[2, 5\] and \[2, 5\]"):
        finite_noise_sensitivity(np.zeros((2, 5)), np.zeros((2, 5)), layers, 1)
    with pytest.raises(InvalidInput, match=r"got \[2, 3\] and \[1, 3\]"):
        finite_noise_sensitivity(np.zeros((2, 3)), np.zeros((1, 3)), layers, 1)
    with pytest.raises(InvalidInput, match="layers must hold one weight layer"):
        finite_noise_sensitivity(np.zeros((2, 3)), np.zeros((2, 3)), [], 1)
