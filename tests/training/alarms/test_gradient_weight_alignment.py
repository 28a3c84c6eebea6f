"""Cosines against autograd in float64, kurtosis against SciPy, the last layer of whole networks."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import kurtosis
from torch import nn

from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.training.alarms.gradient_weight_alignment import (
    GradientWeightAlignment,
    alignments,
    excess_kurtosis,
)


def tiny(n: int = 30) -> tuple[nn.Sequential, nn.Linear, Samples]:
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        head = nn.Linear(8, 4)
        network = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), head).double()
    x = torch.randn(n, 5, generator=generator, dtype=torch.float64)
    return network, head, Samples(x, torch.randint(0, 4, (n,), generator=generator))


def test_cosines_and_their_quotient_against_autograd_and_scipy() -> None:
    network, head, samples = tiny()
    assert samples.targets is not None
    weight, cosines = head.weight.detach(), []
    for x, y in zip(samples.inputs, samples.targets, strict=True):
        loss = nn.functional.cross_entropy(network(x[None]), y[None])
        (gradient,) = torch.autograd.grad(loss, head.weight)
        cosines.append(float(-(gradient * weight).sum() / (gradient.norm() * weight.norm())))
    alarm = GradientWeightAlignment(skip=0)
    numbers = alarm.observe(network, samples, 1)
    expected = torch.tensor(cosines, dtype=torch.float64)
    assert numbers["alarm.alignment"] == pytest.approx(float(expected.mean()))
    assert numbers["alarm.kurtosis"] == pytest.approx(float(kurtosis(cosines)))
    assert numbers["alarm.value"] == pytest.approx(float(expected.mean()) / (float(kurtosis(cosines)) + 1.2))
    features = network[:2](samples.inputs)
    assert torch.allclose(alignments(network(samples.inputs), features, weight, samples.targets), expected)


def test_kurtosis_of_two_values_and_of_one() -> None:
    assert excess_kurtosis(torch.tensor([0.0, 1.0] * 5)) == pytest.approx(-2)
    assert excess_kurtosis(torch.ones(4)) == 0


def test_two_modes_are_divided_by_the_smallest_denominator() -> None:
    alarm = GradientWeightAlignment(skip=0, smallest=0.05)
    assert alarm.update(torch.tensor([0.2, 0.6] * 5), 1)["alarm.value"] == pytest.approx(0.4 / 0.05)
    plain = GradientWeightAlignment(skip=0, kurtosis=False)
    assert plain.update(torch.tensor([0.2, 0.6] * 5), 1)["alarm.value"] == pytest.approx(0.4)


def test_the_beginning_is_left_out() -> None:
    alarm = GradientWeightAlignment(window=1, patience=1, skip=2, kurtosis=False)
    for epoch, mean in enumerate([0.9, 0.8, 0.1, 0.3, 0.2], start=1):
        alarm.update(torch.full((4,), mean), epoch)
    assert (alarm.raised_at, alarm.peak) == (5, 4)


def test_outputs_that_do_not_come_from_a_linear_layer_are_refused() -> None:
    network = nn.Sequential(nn.Linear(5, 4), nn.Tanh())
    samples = Samples(torch.randn(6, 5), torch.tensor([0, 1, 2, 3, 0, 1]))
    with pytest.raises(InvalidInput, match=r"needs a network whose outputs are those of its last layer, an nn\.Linear"):
        GradientWeightAlignment().observe(network, samples, 1)
