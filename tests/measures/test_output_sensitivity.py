"""Output sensitivity against its definition in NumPy and closed forms, and its blind spot."""

from __future__ import annotations

import copy
import itertools
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gapscope.measures._noise import InputNoise
from gapscope.measures.output_sensitivity import output_sensitivity


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def relu_network(*widths: int, bias: bool = True, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out, bias=bias), nn.ReLU()]
    return nn.Sequential(*layers[:-1]).double()


def head(network: nn.Sequential) -> nn.Linear:
    last = network[-1]
    assert isinstance(last, nn.Linear)
    return last


@pytest.fixture
def network() -> nn.Sequential:
    return relu_network(6, 20, 20, 4)


@pytest.fixture
def x() -> Tensor:
    return torch.rand(50, 6, generator=seeded(1), dtype=torch.float64)


def shifts(
    network: nn.Module, x: Tensor, draws: int, seed: int, noise_std: float = 0.1
) -> np.ndarray:
    generator = seeded(seed)
    with torch.no_grad():
        noisy = [
            network(x + noise_std * torch.randn(x.shape, generator=generator, dtype=x.dtype))
            for _ in range(draws)
        ]
        return torch.stack([outputs - network(x) for outputs in noisy]).numpy()


@pytest.mark.parametrize("draws", [1, 3])
def test_is_the_population_variance_over_samples_and_draws_of_the_mean_output(network, x, draws):
    expected = np.var(shifts(network, x, draws, seed=5).mean(2))
    assert output_sensitivity(network, x, draws=draws, generator=seeded(5)) == pytest.approx(
        expected, rel=1e-12
    )


def test_per_output_is_the_mean_of_the_outputs_variances(network, x):
    expected = shifts(network, x, 2, seed=5).reshape(-1, 4).var(0).mean()
    measured = output_sensitivity(network, x, draws=2, per_output=True, generator=seeded(5))
    assert measured == pytest.approx(expected, rel=1e-12)


def test_after_the_softmax_s_is_zero_and_the_per_output_form_is_used(network, x):
    behind = shifts(nn.Sequential(network, nn.Softmax(1)), x, 1, seed=5)
    assert np.var(behind.mean(2)) < 1e-32
    measured = output_sensitivity(network, x, space="probabilities", generator=seeded(5))
    assert measured == pytest.approx(behind[0].var(0).mean(), rel=1e-12)


def test_linear_network_has_a_closed_form(x):
    layer = nn.Linear(6, 4).double()
    expected = 0.3**2 * layer.weight.mean(0).square().sum().item()
    assert output_sensitivity(layer, x, noise_std=0.3, method="zero_noise") == pytest.approx(
        expected, rel=1e-12
    )
    measured = output_sensitivity(layer, x, noise_std=0.3, draws=200)
    assert measured.standard_error is not None
    assert abs(measured - expected) < 4 * measured.standard_error
    assert measured.standard_error < 0.03 * expected


@pytest.mark.parametrize("options", [{}, {"per_output": True}, {"space": "probabilities"}])
def test_the_limit_is_approached_as_the_noise_falls(network, x, options):
    limit = output_sensitivity(network, x, noise_std=1e-3, method="zero_noise", **options)
    measured = output_sensitivity(network, x, noise_std=1e-3, draws=100, **options)
    assert limit.exact
    assert measured.standard_error is not None
    assert abs(measured - limit) < 4 * measured.standard_error


class Bowl(nn.Module):
    """Outputs whose slope is the input itself, so that samples differ in their sensitivity."""

    def forward(self, x: Tensor) -> Tensor:
        return x.square().sum(1, keepdim=True) * torch.tensor([1.0, 0.5])


@pytest.mark.parametrize("seed", range(3))
def test_the_noise_differs_from_inputs_of_the_same_seed(seed):
    x = torch.randn(400, 5, generator=seeded(seed), dtype=torch.float64)
    measured = output_sensitivity(Bowl(), x)
    # Noise 0.1 x would shift the mean output by 0.75 * 0.21 |x|^2, so that S were 0.25 instead of 0.11.
    expected = output_sensitivity(Bowl(), x, method="zero_noise")
    assert abs(measured - expected) < 4 * (measured.standard_error or 0)


@pytest.mark.thorough
@pytest.mark.parametrize("draws", [1, 8])
@pytest.mark.parametrize("per_output", [False, True])
def test_the_standard_error_is_the_spread_over_new_samples_and_noise(draws, per_output):
    values, errors = [], []
    for seed in range(150):
        generator = seeded(seed)
        x = torch.randn(200, 3, generator=generator, dtype=torch.float64)
        s = output_sensitivity(Bowl(), x, draws=draws, per_output=per_output, generator=generator)
        values.append(float(s))
        errors.append(s.standard_error)
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.15)


def test_one_sample_has_a_variance_over_its_draws(network, x):
    measured = output_sensitivity(network, x[:1], draws=500, noise_std=1e-3)
    limit = output_sensitivity(network, x[:1], noise_std=1e-3, method="zero_noise")
    assert measured.standard_error is not None
    assert abs(measured - limit) < 4 * measured.standard_error < limit


@pytest.mark.parametrize("scale", [2.0, 4.0])
def test_scaling_inputs_up_and_outputs_down_divides_by_the_square_of_the_scale(x, scale):
    network = relu_network(6, 20, 20, 4, bias=False)
    smaller = copy.deepcopy(network)
    with torch.no_grad():
        head(smaller).weight.div_(scale)
    options = {"method": "zero_noise"}
    ratio = output_sensitivity(network, x, **options) / output_sensitivity(
        smaller, scale * x, **options
    )
    assert ratio == pytest.approx(scale**2, rel=1e-12)  # the paper says the fourth power
    # With noise scaled like the inputs only the outputs' scale is left over, and it cancels.
    assert output_sensitivity(smaller, scale * x, noise_std=0.1 * scale) == pytest.approx(
        output_sensitivity(network, x), rel=1e-12
    )


def centred(network: nn.Sequential) -> nn.Sequential:
    network = copy.deepcopy(network)
    with torch.no_grad():
        head(network).weight.sub_(head(network).weight.mean(0))
    return network


@pytest.mark.parametrize("method", ["sampled", "zero_noise"])
def test_a_centred_head_makes_s_zero_with_a_warning(network, x, method):
    blind = centred(network)
    assert torch.allclose(network(x).softmax(1), blind(x).softmax(1), atol=1e-14)
    with pytest.warns(UserWarning, match=r"nearly so\. Use per_output=True\."):
        value = output_sensitivity(blind, x, method=method)
    assert value < 1e-25 < 1e-6 < output_sensitivity(network, x, method=method)
    per_output = output_sensitivity(blind, x, method=method, per_output=True)
    assert 0.5 < per_output / output_sensitivity(network, x, method=method, per_output=True) < 2
    behind = [
        output_sensitivity(one, x, method=method, space="probabilities") for one in (network, blind)
    ]
    assert behind[0] == pytest.approx(behind[1], rel=1e-9)


def test_a_single_output_and_a_constant_network_do_not_warn(x):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert output_sensitivity(relu_network(6, 8, 1), x) > 0
        constant = nn.Linear(6, 3).double()
        nn.init.zeros_(constant.weight)
        assert output_sensitivity(constant, x) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_noise_of_many_entries_is_normal_and_uncorrelated_between_samples(
    dtype: torch.dtype,
) -> None:
    x = torch.zeros(1203, 257, dtype=dtype)
    noise = InputNoise(x, seeded(0))
    whole = noise[slice(0, 1203)].double()
    assert whole.shape == x.shape and noise[slice(0, 1)].dtype == dtype
    parts = [noise[slice(start, min(start + 37, 1203))].double() for start in range(0, 1203, 37)]
    assert torch.equal(torch.cat(parts), whole), "whatever the chunks"
    # 309,171 entries, of which 38,807 sizes are independent: a standard error of .005 for the second moment
    assert (
        abs(whole.mean()) < 0.008
        and abs(whole.square().mean() - 1) < 0.03
        and abs(whole.pow(4).mean() - 3) < 0.3
    )
    eights = whole[:1200].view(-1, 8, 257)
    between = torch.einsum("gae,gbe->ab", eights, eights) / (150 * 257)
    assert (between - torch.eye(8).double() * between.diagonal()).abs().max() < 4 * (
        3 / (150 * 257)
    ) ** 0.5
    assert len(set(map(tuple, torch.sign(whole[:8]).tolist()))) == 8, "each has its own signs"


@pytest.mark.parametrize("weight", ["equal", "steep"])
def test_shared_magnitudes_increase_the_variance_of_s_by_the_formula(weight: str) -> None:
    w = torch.ones(256).double() if weight == "equal" else 0.9 ** torch.arange(256).double()
    w = w / w.norm()
    result = torch.stack([(InputNoise(torch.zeros(64, 256).double(), seeded(s))[slice(0, 64)] @ w).square().mean()
                         for s in range(600)])  # fmt: skip
    enlarged = 1 + 7 * float(w.pow(4).sum())
    assert float(result.mean()) == pytest.approx(1, abs=4 * (2 / 64 * enlarged / 600) ** 0.5)
    assert float(result.var()) == pytest.approx(2 / 64 * enlarged, rel=0.25)
