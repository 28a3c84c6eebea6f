"""The gate by hand, before training and at the first observation."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gapscope.base.samples import Samples
from gapscope.measures.kernel_leave_one_out import kernel_leave_one_out
from gapscope.training.alarms.initial_kernel import KernelNoiseGate, disagreement_fraction


def test_contradictions_by_hand() -> None:
    predictions = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8], [0.5, 0.5]])
    labels = torch.zeros(4, dtype=torch.int64)  # others lead by -.8, .2, .6, 0
    assert [disagreement_fraction(predictions, labels, margin) for margin in (0.0, 0.3, 0.7)] == [0.5, 0.25, 0.0]


@pytest.mark.parametrize(("wrong", "is_open"), [(0, False), (12, True)])
def test_the_gate_opens_where_labels_contradict_their_surroundings(wrong: int, is_open: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 2
    x = torch.randn(60, 4, generator=generator) + 6 * torch.eye(2, 4)[y]
    labels = torch.where(torch.arange(60) < wrong, 1 - y, y)
    network, gate = nn.Linear(4, 2), KernelNoiseGate()
    gate.begin(network, Samples(x, labels))
    assert gate.open is is_open
    assert gate.share == pytest.approx(wrong / 60, abs=0.05)
    assert gate.accuracy == kernel_leave_one_out(network, x, labels).accuracy
    late = KernelNoiseGate()
    numbers = late.observe(network, Samples(x, labels), 1)
    assert numbers == {"alarm.contradicted": gate.share, "alarm.left_out_accuracy": gate.accuracy, "alarm.raised": 0.0}
