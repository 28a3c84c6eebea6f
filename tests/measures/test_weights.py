"""Norms and spectra of weight matrices: closed forms, dense operators, and a slow power-law fit."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, NotMeasurable
from gapscope.batch_norm import replace_batch_norm
from gapscope.measures._weights import layer_weights
from gapscope.measures.before_training import synaptic_flow
from gapscope.measures.norms import (
    circular_operator_norm,
    operator_norms,
    power_law_alpha,
    power_law_fit,
    spectral_complexity,
    spectral_distance_complexity,
)
from gapscope.measures.path_norms import path_norm
from support.cases import CASES

DOUBLE = torch.float64


def two_layers() -> tuple[nn.Module, Tensor]:
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    return network, torch.randn(20, 3, dtype=DOUBLE)


def test_the_balanced_sum_is_the_smallest_that_rescaling_reaches() -> None:
    network, x = two_layers()
    result = operator_norms(network, x)
    one, two = (float(torch.linalg.matrix_norm(network[i].weight.detach(), 2)) ** 2 for i in (0, 2))  # type: ignore[index, union-attr, arg-type]
    assert result["log_product"] == pytest.approx(math.log(one) + math.log(two), rel=1e-12)
    assert result["log_sum"] == pytest.approx(math.log(2 * math.sqrt(one * two)), rel=1e-12)
    factors = torch.logspace(-3, 3, 20001, dtype=DOUBLE)
    assert float((factors * one + two / factors).min().log()) == pytest.approx(
        result["log_sum"], abs=1e-6
    )


@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_batch_norm_is_folded_into_the_layer_before_it(kind: str) -> None:
    layer = nn.Linear(3, 4) if kind == "linear" else nn.Conv2d(3, 4, 3)
    norm = nn.BatchNorm1d(4) if kind == "linear" else nn.BatchNorm2d(4)
    x = torch.randn(30, 3) if kind == "linear" else torch.randn(30, 3, 5, 5)
    nn.init.uniform_(norm.weight, 0.5, 2)
    network = nn.Sequential(layer, norm)
    network.train()(x)
    scale = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()  # type: ignore[union-attr]
    folded = layer.weight.double().flatten(1) * scale[:, None]
    torch.testing.assert_close(layer_weights(network, x)[0].matrix, folded.detach())


def test_a_batch_norm_behind_an_activation_in_place_does_not_scale_the_layer() -> None:
    layers = [nn.Linear(3, 2), nn.ReLU(inplace=True), nn.BatchNorm1d(2, eps=3.0), nn.Linear(2, 2)]
    network = nn.Sequential(*layers).eval()
    assert torch.equal(
        layer_weights(network, torch.ones(2, 3))[0].matrix, layers[0].weight.double()
    )
    assert float(path_norm(network, torch.ones(2, 3))) == pytest.approx(
        float(path_norm(nn.Sequential(layers[0], nn.ReLU(), *layers[2:]).eval(), torch.ones(2, 3)))
    )


class FrozenNorm(nn.Module):
    """Batch norm whose parameters are buffers, as in detection networks."""

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.eps = norm.eps
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, getattr(norm, name).detach())

    def forward(self, h: Tensor) -> Tensor:
        weight, bias, mean, variance = self.buffers()
        scale = weight * (variance + self.eps).rsqrt()
        shift = bias - mean * scale
        return h * scale[:, None, None] + shift[:, None, None]


class Standardizer(nn.Module):
    """Constants with a name of batch norm, without its other attributes."""

    def __init__(self, mean: float) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.full((3,), mean))

    def forward(self, h: Tensor) -> Tensor:
        return h - self.get_buffer("running_mean")


@pytest.mark.parametrize("mean", [0.1, 1e4])
def test_numbers_that_a_standardizer_subtracts_are_no_weights(mean: float) -> None:
    x = torch.ones(2, 4)
    layers = [nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)]
    standardized = nn.Sequential(layers[0], Standardizer(mean), *layers[1:])
    with pytest.raises(NotMeasurable, match="numbers that are subtracted"):
        path_norm(standardized, x)
    centred = nn.Sequential(layers[0], Standardizer(0.0), *layers[1:])
    assert float(path_norm(centred, x)) == pytest.approx(
        float(path_norm(nn.Sequential(*layers), x))
    )


def instance_norm(norm: nn.BatchNorm2d) -> nn.Module:
    result = nn.InstanceNorm2d(5, affine=True, track_running_stats=True).double()
    result.load_state_dict(norm.state_dict())
    return result


@pytest.mark.parametrize(
    "kind", ["batch", "population", "ghost", "mean_only", "variance_only", "frozen", "instance"]
)
def test_every_norm_is_merged_into_the_layer_before_it(kind: str) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(30, 2, 6, 6, dtype=DOUBLE), torch.arange(30) % 3
    layers = [nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(80, 3)]
    network: Any = nn.Sequential(*layers).double()
    for parameter in network[1].parameters():
        nn.init.normal_(parameter)
    network.train()(x)
    merged = replace_batch_norm(network.eval(), "none", inputs=x[:2])
    if kind in ("frozen", "instance"):
        network[1] = {"frozen": FrozenNorm, "instance": instance_norm}[kind](network[1])
        other = network.eval()
    else:
        other = replace_batch_norm(network, kind).eval()
    torch.testing.assert_close(other(x), merged(x))
    for measure in (path_norm, synaptic_flow, lambda net, x: spectral_complexity(net, x, y)):
        assert float(measure(other, x)) == pytest.approx(float(measure(merged, x)), rel=1e-9)
    start = {name: 2 * tensor for name, tensor in other.state_dict().items()}
    first, last = layer_weights(other, x, start)
    torch.testing.assert_close(first.weight, merged[0].weight.detach())
    moved = copy.deepcopy(other)
    moved.load_state_dict(start)
    difference = first.matrix - layer_weights(moved, x)[0].matrix
    torch.testing.assert_close(first.difference, difference)
    assert last.scale == 1


def dense_circular(kernel: Tensor, size: tuple[int, ...], **options: Any) -> Tensor:
    """The convolution with circular padding as a matrix, column by column."""
    groups = options.get("groups", 1)
    inputs = kernel.shape[1] * groups
    basis = torch.eye(inputs * math.prod(size), dtype=DOUBLE).reshape(-1, inputs, *size)
    dilation = options.get("dilation", (1,) * len(size))
    pads: list[int] = []
    for length, d in zip(reversed(kernel.shape[2:]), reversed(dilation), strict=True):
        pads += [0, d * (length - 1)]
    convolve = {1: F.conv1d, 2: F.conv2d}[len(size)]
    return convolve(F.pad(basis, pads, mode="circular"), kernel, **options).flatten(1).T


@pytest.mark.parametrize(
    ("shape", "size", "options"),
    [
        ((3, 2, 3, 3), (5, 6), {}),
        ((2, 3, 3, 3), (6, 4), {"stride": (2, 2)}),
        ((4, 2, 2, 3), (6, 6), {"stride": (3, 2)}),
        ((4, 2, 3, 3), (6, 6), {"groups": 2}),
        ((2, 2, 2, 2), (6, 5), {"dilation": (2, 3)}),
        ((3, 2, 3), (8,), {"stride": (2,)}),
        ((2, 3, 1, 1), (4, 4), {"stride": (2, 2)}),
    ],
)
def test_the_operator_norm_is_that_of_the_dense_operator(
    shape: tuple[int, ...], size: tuple[int, ...], options: dict[str, Any]
) -> None:
    kernel = torch.randn(*shape, dtype=DOUBLE)
    expected = float(torch.linalg.matrix_norm(dense_circular(kernel, size, **options), 2))
    assert circular_operator_norm(kernel, size, **options) == pytest.approx(expected, rel=1e-10)


def test_operator_norms_use_the_sizes_of_the_data() -> None:
    network, samples = CASES["convolutional"].make(4, dtype=DOUBLE)
    layers = {layer.name: layer for layer in layer_weights(network, samples.inputs)}
    assert {name: layer.positions for name, layer in layers.items()} == {
        "0.weight": (8, 8), "4.weight": (4, 4), "8.weight": (), "10.weight": (),
    }  # fmt: skip
    expected = [float(torch.linalg.matrix_norm(dense_circular(layers[k].weight, layers[k].positions), 2))
                for k in ("0.weight", "4.weight")]  # fmt: skip
    expected += [
        float(torch.linalg.matrix_norm(layers[k].weight, 2)) for k in ("8.weight", "10.weight")
    ]
    result = operator_norms(network, samples.inputs)["log_product"]
    assert result == pytest.approx(2 * sum(math.log(value) for value in expected), rel=1e-10)


def test_operator_norms_of_settings_that_are_one_number() -> None:
    torch.manual_seed(0)
    layer: Any = nn.Conv2d(2, 3, 3, stride=2, dilation=2)
    network, x = (
        nn.Sequential(layer, nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        torch.randn(2, 2, 8, 8),
    )
    expected = operator_norms(network, x)
    layer.stride = layer.dilation = 2  # as torch reads them
    assert operator_norms(network, x) == expected


def test_spectral_bounds_of_one_layer() -> None:
    network = nn.Linear(2, 2, bias=False)
    network.weight.data.copy_(torch.diag(torch.tensor([2.0, 1.0])))
    # margins 5, 1, 3
    x, y = (
        torch.tensor([[3.0, 1.0], [1.0, 1.0], [2.0, 1.0]]),
        torch.zeros(3).long(),
    )
    assert spectral_complexity(network, x, y) == pytest.approx(
        math.log(4) - 2 * math.log(1) + math.log(5 / 4)
    )
    initial = {"weight": torch.eye(2)}
    result = spectral_distance_complexity(network, x, y, initial_state=initial)
    assert result == pytest.approx(math.log(4) + math.log(1 / 4))
    with pytest.raises(NotMeasurable, match="weights other than zero"):
        spectral_distance_complexity(network, x, y, initial_state=dict(network.state_dict()))
    with pytest.raises(InvalidInput, match="'weight' is"):
        spectral_distance_complexity(network, x, y, initial_state={"weight": torch.zeros(3)})


def test_without_matrices_there_is_no_norm() -> None:
    with pytest.raises(NotMeasurable, match="two dimensions"):
        operator_norms(nn.LayerNorm(3), torch.ones(2, 3))
    network = nn.Linear(2, 2)
    nn.init.zeros_(network.weight)
    with pytest.raises(NotMeasurable, match="weight matrix"):
        operator_norms(network, torch.ones(1, 2))


@pytest.mark.parametrize("alpha", [2.0, 3.5])
def test_quantiles_of_a_power_law_give_its_exponent(alpha: float) -> None:
    share = (torch.arange(2000, dtype=DOUBLE) + 0.5) / 2000
    values = 0.7 * (1 - share) ** (-1 / (alpha - 1))
    result, start, distance = power_law_fit(values)
    assert result == pytest.approx(alpha, rel=0.01) and distance < 0.005 and start < 2


def slow_fit(values: list[float]) -> tuple[float, float]:
    best = (math.inf, math.nan, math.nan)
    values = sorted(values)
    for start in range(len(values) - 1):
        tail = values[start:]
        alpha = 1 + len(tail) / sum(math.log(v / tail[0]) for v in tail)
        gaps = [abs(1 - (v / tail[0]) ** (1 - alpha) - i / len(tail)) for i, v in enumerate(tail)]
        best = min(best, (max(gaps), alpha, tail[0]))
    return best[1], best[2]


def test_the_fit_of_random_values_equals_a_slow_one() -> None:
    values = torch.rand(40, dtype=DOUBLE).reciprocal()
    assert power_law_fit(values)[:2] == pytest.approx(slow_fit(values.tolist()), rel=1e-9)


def test_layers_are_averaged_without_small_ones() -> None:
    network = nn.Sequential(nn.Linear(30, 40), nn.Linear(40, 25), nn.Linear(25, 3)).double()
    x = torch.ones(1, 30, dtype=DOUBLE)
    fits = []
    for layer in list(network.children())[:2]:
        squares = torch.linalg.svdvals(layer.weight.detach()).square()  # type: ignore[arg-type]
        fits.append((power_law_fit(squares)[0], math.log10(float(squares.max()))))
    result = power_law_alpha(network, x)
    assert result["alpha"] == pytest.approx(sum(a for a, _ in fits) / 2, rel=1e-6)
    assert result["weighted"] == pytest.approx(sum(a * size for a, size in fits) / 2, rel=1e-6)
    with pytest.raises(NotMeasurable, match="50 or more different"):
        power_law_alpha(network, x, min_eigenvalues=50)


class Tripled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 3 * super().forward(x)


class Named(nn.Linear):
    """A forward function of its own with the operator of torch's layer."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


def test_a_layer_with_another_operator_than_its_weight_has_no_norms() -> None:
    network, x = two_layers()
    y = torch.arange(20) % 2
    expected = [operator_norms(network, x).scalars(), path_norm(network, x)]
    for kind in (Tripled, Named):
        layer = kind(3, 4).double()
        layer.load_state_dict(network[0].state_dict())  # type: ignore[index, union-attr]
        changed = nn.Sequential(layer, nn.ReLU(), network[2])  # type: ignore[index, arg-type]
        if kind is Named:
            assert [operator_norms(changed, x).scalars(), path_norm(changed, x)] == expected
            continue
        for measure in (operator_norms, path_norm, lambda n, x: spectral_complexity(n, x, y)):
            with pytest.raises(NotMeasurable, match="Tripled '0'"):
                measure(changed, x)
