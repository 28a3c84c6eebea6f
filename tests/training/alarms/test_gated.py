"""A gated alarm: raised at the first observation where the alarm is raised and the gate is open."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gapscope.base.samples import Samples
from gapscope.training.alarms.gated import GatedAlarm
from gapscope.training.alarms.initial_kernel import KernelNoiseGate
from gapscope.training.alarms.label_wave import LabelWave


@pytest.mark.parametrize(("opens_at", "raised"), [(1, 4), (5, 5), (9, None)])
def test_both_must_hold(opens_at: int, raised: int | None) -> None:
    alarm = GatedAlarm(LabelWave(window=1, patience=1), KernelNoiseGate(smallest_share=0.5))
    predicted = [[0, 0, 0, 0], [0, 1, 2, 0], [0, 1, 2, 1], [1, 0, 2, 1], [1, 0, 2, 1], [1, 0, 2, 1]]
    assert isinstance(alarm.alarm, LabelWave) and isinstance(alarm.gate, KernelNoiseGate)
    for epoch, row in enumerate(predicted, start=1):
        alarm.gate.share = 0.6 if epoch >= opens_at else 0.4
        alarm.alarm.update(torch.tensor(row), epoch)
        numbers = alarm.update(epoch)
        assert numbers["alarm.open"] == float(epoch >= opens_at)
    assert alarm.raised_at == raised


def test_both_look_before_training_and_at_every_observation() -> None:
    samples = Samples(torch.randn(12, 3, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3)
    alarm, network = GatedAlarm(), nn.Linear(3, 3)
    alarm.begin(network, samples)
    numbers = [alarm.observe(network, samples, epoch) for epoch in (1, 2)]
    assert numbers[1]["alarm.prediction_changes"] == 0 and "alarm.contradicted" in numbers[0]
