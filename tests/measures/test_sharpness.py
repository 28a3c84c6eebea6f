"""Sharpness: closed forms of a quadratic loss and of a linear classifier under noise."""

from __future__ import annotations

import math
from statistics import NormalDist, fmean, stdev
from typing import Any

import pytest
import torch
from torch import nn

from gapscope.inspection.memoization import memo_scope
from gapscope.measures import pacbayes
from gapscope.measures.pacbayes import (
    pacbayes_distance,
    pacbayes_flatness,
    pacbayes_magnitude_flatness,
    pacbayes_norm,
)
from gapscope.measures.sharpness import adaptive_sharpness, worst_case_sharpness

DOUBLE = torch.float64


@pytest.mark.parametrize("steps", [1, 5])
def test_rise_of_a_quadratic_loss(steps: int) -> None:
    """loss |w - w*|^2 / 2 (two outputs, two samples): the worst direction is away from w*."""
    network = nn.Linear(2, 1, bias=False).double()
    network.weight.data.copy_(torch.tensor([[1.0, 2.0]]))
    x, y = torch.eye(2, dtype=DOUBLE), torch.zeros(2, 1, dtype=DOUBLE)
    distance, radius = math.sqrt(5), 0.3
    expected = ((distance + radius) ** 2 - distance**2) / 2
    assert worst_case_sharpness(network, x, y, radius=radius, steps=steps) == pytest.approx(
        expected, rel=1e-10
    )
    box = (1.1**2 + 2.2**2 - 5) / 2
    assert adaptive_sharpness(network, x, y, radius=0.1, steps=steps) == pytest.approx(
        box, rel=1e-10
    )


def margin_classifier(margin: float) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """f = (0, w) for x = 1 and label 1, right where w + noise > noise of the other output."""
    network = nn.Linear(1, 2, bias=False)
    network.weight.data.copy_(torch.tensor([[0.0], [margin]]))
    return network, torch.ones(4, 1), torch.ones(4).long()


def many_margins(margin: float) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """As `margin_classifier`, 1,000 times over: every sample has two weights, and so noise, of its own."""
    network = nn.Linear(1000, 2, bias=False)
    network.weight.data.copy_(torch.tensor([[0.0], [margin]]).expand(2, 1000))
    return network, torch.eye(1000), torch.ones(1000).long()


def test_the_deviation_is_a_standard_deviation() -> None:
    """The accuracy under noise is Phi(margin / (sqrt 2 sigma)): it drops by a tenth at one known sigma.

    8 draws for each of 1,000 samples leave the accuracy to .0034, and the search ends within .01 of the drop; a
    deviation that is off by a share s moves the drop by .225 s.
    """
    sigma = 0.5 / (math.sqrt(2) * NormalDist().inv_cdf(0.9))
    result = pacbayes_flatness(*many_margins(0.5), draws=8)
    assert result**-0.5 == pytest.approx(sigma, rel=(0.01 + 2 * 0.0034) / 0.225)


def test_the_standard_error_is_the_spread_over_seeds() -> None:
    network, x, y = many_margins(0.5)
    parts = x[:60], y[:60]
    results = [
        pacbayes_flatness(network, *parts, draws=6, generator=torch.Generator().manual_seed(seed))
        for seed in range(12)
    ]
    errors = [result.standard_error or 0.0 for result in results]
    assert 0.5 < fmean(errors) / stdev(results) < 2
    assert math.isnan(pacbayes_flatness(network, *parts, draws=1).standard_error or 0.0)


def test_the_drop_holds_for_the_same_noise_samples() -> None:
    """Each draw errs from one deviation on, margin / (n_0 - n_1): the fraction below the result is the drop."""
    network, x, y = margin_classifier(0.5)
    result = (
        pacbayes_flatness(network, x, y, draws=100, generator=torch.Generator().manual_seed(5))
        ** -0.5
    )
    seeds = torch.randint(2**62, (100,), generator=torch.Generator().manual_seed(5)).tolist()
    noise = torch.stack(
        [torch.randn(2, 1, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    )
    wrong = result * (noise[:, 0, 0] - noise[:, 1, 0]) >= 0.5
    assert abs(wrong.double().mean().item() - 0.1) < 0.01


def test_bounds_follow_from_the_deviation() -> None:
    network, x, y = margin_classifier(0.5)
    with memo_scope():
        result = pacbayes_flatness(network, x, y, draws=100)
        bound = 0.25 / (4 / result) + math.log(4 * result**0.5) + 10
        assert pacbayes_norm(network, x, y, draws=100) == pytest.approx(bound)
        initial = {"weight": torch.tensor([[0.0], [0.2]])}
        bound = 0.09 / (4 / result) + math.log(4 * result**0.5) + 10
        assert pacbayes_distance(network, x, y, draws=100, initial_state=initial) == pytest.approx(
            bound, rel=1e-6
        )


def test_noise_proportional_to_the_weights() -> None:
    """Only the weight of the right class is not zero: its noise is sigma' w, so that the margin does not matter."""
    factor = 1 / NormalDist().inv_cdf(0.9)
    for margin in (0.5, 5.0):
        result = pacbayes_magnitude_flatness(*many_margins(margin), draws=8)
        # the drop moves by Phi'(1.28) 1.28 = .225 of the share by which the factor is off
        assert result**-0.5 == pytest.approx(factor, rel=(0.01 + 2 * 0.0034) / 0.225)


@pytest.fixture
def perturbations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry per noise sample from here on."""
    calls, perturb = list[int](), pacbayes._perturb

    def count(*args: Any, **options: Any) -> Any:
        calls.append(1)
        return perturb(*args, **options)

    monkeypatch.setattr(pacbayes, "_perturb", count)
    return calls


def test_measures_of_one_stream_share_a_bisection(perturbations: list[int]) -> None:
    network, x, y = margin_classifier(0.5)
    pacbayes_flatness(network, x, y, generator=torch.Generator().manual_seed(3))
    once = len(perturbations)
    with memo_scope():
        for measure in (pacbayes_flatness, pacbayes_norm):
            measure(network, x, y, generator=torch.Generator().manual_seed(3))
    assert len(perturbations) == 2 * once > 0


def test_shared_work_leaves_its_generator_as_work_of_its_own_does() -> None:
    network, x, y = margin_classifier(0.5)
    generators = [torch.Generator().manual_seed(3) for _ in range(2)]
    with memo_scope():
        for generator in generators:
            pacbayes_flatness(network, x, y, generator=generator)
    first, second = (each.get_state() for each in generators)
    assert torch.equal(first, second)
    assert not torch.equal(first, torch.Generator().manual_seed(3).get_state())


@pytest.mark.thorough
def test_noise_samples_that_cannot_matter_are_omitted(
    perturbations: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most deviations the accuracy is lost after a few noise samples, whatever the others would show."""
    network, x, y = margin_classifier(0.02)
    result, n_used = pacbayes_flatness(network, x, y, draws=50), len(perturbations)
    monkeypatch.setattr(pacbayes, "_certainly_exceeds", lambda *args: False)
    assert pacbayes_flatness(network, x, y, draws=50) == result
    assert len(perturbations) - n_used > 1.3 * n_used
