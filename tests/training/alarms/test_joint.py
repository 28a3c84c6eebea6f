"""The sum of three signals against each of them alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gapscope.base.samples import Samples
from gapscope.training.alarms.gradient_weight_alignment import GradientWeightAlignment
from gapscope.training.alarms.joint import JointAlarm
from gapscope.training.alarms.loo_agreement import LeftOutAgreement
from gapscope.training.alarms.shared_learning import SharedLearning


def test_the_signals_are_those_of_the_three_alarms() -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 3))
    samples = Samples(torch.randn(32, 5, generator=generator), torch.randint(0, 3, (32,), generator=generator))
    joint, left_out = JointAlarm(neighbours=6), LeftOutAgreement()
    shared, alignment = SharedLearning(neighbours=6, weight=0.5), GradientWeightAlignment(kurtosis=False)
    for epoch in range(1, 5):
        found = joint.observe(network, samples, epoch)
        parts = [
            left_out.observe(network, samples, epoch)["alarm.agreement"],
            alignment.observe(network, samples, epoch)["alarm.alignment"],
            shared.observe(network, samples, epoch)["alarm.support"],
        ]
        assert [found[f"alarm.{name}"] for name in ("agreement", "alignment", "support")] == pytest.approx(parts)
        assert found["alarm.value"] == pytest.approx(sum(parts))
        with torch.no_grad():
            for parameter in network.parameters():
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)


def test_a_fall_of_the_sum_raises_it() -> None:
    alarm, labels = JointAlarm(window=1, patience=1, fall=0.1), torch.zeros(8, dtype=torch.int64)
    neighbours, predictions = (torch.arange(8)[:, None] + 1) % 8, torch.tensor([[0.5, 0.5]]).expand(8, 2)
    for epoch, p in enumerate([0.5, 0.8, 0.75, 0.6], start=1):
        probabilities = torch.tensor([[p, 1 - p]]).expand(8, 2)  # agreement 1/2, support p
        alarm.update(probabilities, labels, predictions, neighbours, torch.zeros(8), epoch)
    assert (alarm.raised_at, alarm.peak) == (4, 2)
