from __future__ import annotations

from typing import Any

import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from gapscope.base.errors import InvalidInput
from gapscope.base.specs import INITIALIZATIONS
from gapscope.networks.initialization import initialize


def _seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _layers() -> Any:
    # fan-in 3 * 9 = 27 and 256; fan-out 64 * 9 = 576 and 128
    return nn.Sequential(nn.Conv2d(3, 64, 3), nn.Linear(256, 128))


def _uniform_pvalue(values: Any, bound: float) -> float:
    return stats.kstest(
        values.detach().flatten().numpy(), stats.uniform(-bound, 2 * bound).cdf
    ).pvalue


def _normal_pvalue(values: Any, std: float) -> float:
    return stats.kstest(values.detach().flatten().numpy(), stats.norm(0, std).cdf).pvalue


@pytest.mark.parametrize(
    ("kind", "pvalue", "sizes"),
    [
        ("torch", _uniform_pvalue, (27**-0.5, 256**-0.5)),
        ("xavier_uniform", _uniform_pvalue, ((6 / (27 + 576)) ** 0.5, (6 / (256 + 128)) ** 0.5)),
        ("he_uniform", _uniform_pvalue, ((6 / 27) ** 0.5, (6 / 256) ** 0.5)),
        ("standard_normal", _normal_pvalue, (1.0, 1.0)),
        ("he_normal", _normal_pvalue, ((2 / 27) ** 0.5, (2 / 256) ** 0.5)),
    ],
)
def test_weights_and_biases_have_the_stated_distribution(
    kind: str, pvalue: Any, sizes: tuple[float, float]
) -> None:
    network = _layers()
    initialize(network, kind, _seeded())
    for layer, size in zip(network, sizes, strict=True):
        assert pvalue(layer.weight, size) > 1e-3 > pvalue(layer.weight, size * 1.2)

    layer = nn.Linear(100, 4000)
    initialize(layer, kind, _seeded())
    if kind in ("standard_normal", "torch"):
        assert pvalue(layer.bias, 1.0 if kind == "standard_normal" else 0.1) > 1e-3
    else:
        assert torch.equal(layer.bias, torch.zeros(4000))


@pytest.mark.parametrize("kind", INITIALIZATIONS)
def test_same_seed_same_weights_and_the_global_state_untouched(kind: str) -> None:
    first, second, third = (
        nn.Sequential(_layers(), nn.Embedding(7, 3), nn.LSTM(3, 4)) for _ in range(3)
    )
    before = torch.get_rng_state()
    initialize(first, kind, _seeded(5))
    initialize(second, kind, _seeded(5))
    initialize(third, kind, _seeded(6))
    assert torch.equal(before, torch.get_rng_state())
    for name, parameter in first.named_parameters():
        assert torch.equal(parameter, second.get_parameter(name))
        if parameter.ndim > 1:
            assert not torch.equal(parameter, third.get_parameter(name))


def test_other_layers_are_reset_as_pytorch_does() -> None:
    network: Any = nn.Sequential(
        nn.BatchNorm1d(4), nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.Embedding(2000, 4, 0)
    )
    for parameter in network.parameters():
        nn.init.constant_(parameter, 9.0)
    network[0].running_mean.fill_(3.0)
    network[0].num_batches_tracked.fill_(8)
    initialize(network, "standard_normal", _seeded())
    for norm in network[:3]:
        assert torch.equal(norm.weight, torch.ones(4))
        assert torch.equal(norm.bias, torch.zeros(4))
    assert network[0].running_mean.tolist() == [0.0] * 4
    assert network[0].running_var.tolist() == [1.0] * 4
    assert int(network[0].num_batches_tracked) == 0
    assert network[3].weight[0].tolist() == [0.0] * 4
    assert _normal_pvalue(network[3].weight[1:], 1.0) > 1e-3


def test_layers_without_bias_and_double_precision() -> None:
    layer = nn.Conv2d(2, 3, 3, bias=False).double()
    initialize(layer, "he_normal", _seeded())
    assert layer.weight.dtype is torch.float64
    # A double sampled as a float would have its last bits zero.
    assert not torch.equal(layer.weight, layer.weight.float().double())


def test_parametrized_weights_are_rejected() -> None:
    with pytest.raises(InvalidInput, match=r"'0' is parametrized\. Initialize"):
        initialize(nn.Sequential(weight_norm(nn.Linear(2, 2))))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_same_weights_on_the_gpu() -> None:
    on_cpu, on_gpu = (
        nn.Sequential(_layers(), nn.LSTM(2, 3)),
        nn.Sequential(_layers(), nn.LSTM(2, 3)).cuda(),
    )
    before = torch.cuda.get_rng_state()
    initialize(on_cpu, "he_normal", _seeded())
    initialize(on_gpu, "he_normal", _seeded())
    assert torch.equal(before, torch.cuda.get_rng_state())
    for name, parameter in on_gpu.named_parameters():
        assert torch.equal(parameter.cpu(), on_cpu.get_parameter(name))
