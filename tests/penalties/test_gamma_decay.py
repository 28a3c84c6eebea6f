"""The gamma decay penalty: its value, its gradient, its schedule and its state."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from gapscope.base.errors import InvalidInput, NotMeasurable
from gapscope.base.samples import Samples
from gapscope.batch_norm.gamma_decay.decay import gamma_decay
from gapscope.batch_norm.refresh import refresh_population
from gapscope.batch_norm.replace import replace_batch_norm
from gapscope.penalties.gamma_decay import GammaDecayPenalty


def some_samples(n: int = 40, seed: int = 0) -> Samples:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=generator)
    return Samples(torch.randn(n, 6, generator=generator) + y[:, None], y)


def some_network() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(
            nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 4), nn.BatchNorm1d(4, affine=False), nn.Tanh(),
            nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3),
        )  # fmt: skip
        for module in network:
            if isinstance(module, nn.BatchNorm1d) and module.affine:
                nn.init.uniform_(module.weight, -1, 2)
        network.train()(some_samples().inputs)
    network = replace_batch_norm(network, "population")
    refresh_population(network, some_samples())
    return network.train()


@pytest.mark.parametrize("options", [{}, {"covariance": "diagonal"}, {"draws": 2, "seed": 5}])
def test_value_is_the_decay_of_the_layers_with_gamma(options: dict[str, Any]) -> None:
    network, samples = some_network(), some_samples()
    penalty = GammaDecayPenalty(0.5, batch_size=16, **options)
    value = penalty(network, samples.inputs, samples.targets)
    seed = options.pop("seed", 0)
    decay = gamma_decay(
        network,
        samples,
        batch_size=16,
        replacement=True,
        generator=torch.Generator().manual_seed(seed),
        **options,
    )
    assert value.item() == pytest.approx(0.5 * (decay["1"].decay + decay["7"].decay), rel=1e-5)
    assert value.item() > 0


def test_gradient_reaches_gamma_alone_with_zeta_held_constant() -> None:
    network, samples = some_network(), some_samples()
    value = GammaDecayPenalty(batch_size=16, covariance="diagonal")(
        network, samples.inputs, samples.targets
    )
    named = dict(network.named_parameters())
    gradients = torch.autograd.grad(value, list(named.values()), allow_unused=True)
    zeta = gamma_decay(network, samples, batch_size=16, replacement=True, covariance="diagonal")[
        "1"
    ].zeta
    for name, gradient in zip(named, gradients, strict=True):
        assert (gradient is not None) == (name in ("1.weight", "7.weight"))
    result = dict(zip(named, gradients, strict=True))["1.weight"]
    torch.testing.assert_close(
        result.double(), 2 * zeta * network[1].weight.detach(), rtol=1e-4, atol=1e-8
    )


def test_full_covariance_has_the_gradient_of_a_quadratic_form() -> None:
    network, samples = some_network(), some_samples()
    value = GammaDecayPenalty(batch_size=16)(network, samples.inputs, samples.targets)
    (gradient,) = torch.autograd.grad(value, network[1].weight)
    coupling = gamma_decay(network, samples, batch_size=16, replacement=True)["1"].coupling
    assert coupling is not None
    torch.testing.assert_close(
        gradient.double(), 2 * coupling @ network[1].weight.detach().double(), rtol=1e-4, atol=1e-8
    )


def test_measured_on_a_schedule_and_smoothed() -> None:
    network = some_network()
    penalty = GammaDecayPenalty(batch_size=16, every=2)
    batches = [some_samples(seed=seed) for seed in range(4)]
    values = [penalty(network, batch.inputs, batch.targets).item() for batch in batches]
    alone = [
        GammaDecayPenalty(batch_size=16)(network, batch.inputs, batch.targets).item()
        for batch in batches
    ]
    assert values[0] == values[1] == pytest.approx(alone[0], rel=1e-6)
    assert values[2] == values[3] == pytest.approx((alone[2] + alone[0]) / 2, rel=1e-5)


def test_what_is_missing_beyond_the_batch_size_at_hand() -> None:
    network, samples = some_network(), some_samples()
    whole = GammaDecayPenalty(batch_size=16)(network, samples.inputs, samples.targets)
    missing = GammaDecayPenalty(batch_size=16, batch_norm_size=64)(
        network, samples.inputs, samples.targets
    )
    assert missing.item() == pytest.approx(0.75 * whole.item(), rel=1e-6)


def test_data_in_place_of_mini_batches() -> None:
    network, samples = some_network(), some_samples(200, seed=9)
    batch = some_samples(8)
    value = GammaDecayPenalty(batch_size=16, data=samples)(network, batch.inputs)
    expected = GammaDecayPenalty(batch_size=16)(network, samples.inputs, samples.targets)
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)


def test_state_resumes() -> None:
    network = some_network()
    batches = [some_samples(seed=seed) for seed in range(5)]
    unbroken = GammaDecayPenalty(batch_size=16, every=2, draws=1)
    values = [unbroken(network, batch.inputs, batch.targets).item() for batch in batches]
    first = GammaDecayPenalty(batch_size=16, every=2, draws=1)
    for batch in batches[:3]:
        first(network, batch.inputs, batch.targets)
    second = GammaDecayPenalty(batch_size=16, every=2, draws=1)
    second.load_state_dict(first.state_dict())
    resumed = [second(network, batch.inputs, batch.targets).item() for batch in batches[3:]]
    assert resumed == pytest.approx(values[3:], rel=1e-12)


def test_under_automatic_mixed_precision() -> None:
    network, samples = some_network(), some_samples()
    plain = GammaDecayPenalty(batch_size=16)(network, samples.inputs, samples.targets)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = GammaDecayPenalty(batch_size=16)(network, samples.inputs, samples.targets)
    assert mixed.item() == pytest.approx(plain.item(), rel=0.02)


def test_errors() -> None:
    samples = some_samples()
    with pytest.raises(InvalidInput, match="loss; got inputs alone"):
        GammaDecayPenalty(batch_size=16)(some_network(), samples.inputs)
    without = nn.Sequential(nn.BatchNorm1d(6, affine=False), nn.Linear(6, 3))
    with pytest.raises(NotMeasurable, match="normalization layers"):
        GammaDecayPenalty(batch_size=16)(without, samples.inputs, samples.targets)
