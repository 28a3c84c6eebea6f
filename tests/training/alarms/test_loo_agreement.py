"""Agreement with left-out predictions by hand, and as a network learns and memorizes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gapscope.base.samples import Samples
from gapscope.measures.kernel_leave_one_out import kernel_leave_one_out
from gapscope.training.alarms.loo_agreement import LeftOutAgreement, agreement


def test_agreement_by_hand() -> None:
    p, b = torch.tensor([[0.9, 0.1], [0.3, 0.7]]), torch.tensor([[1.0, 0.0], [0.5, 0.25]])
    assert agreement(p, b) == pytest.approx((0.9 + 0.15 + 0.175) / 2)


def test_it_follows_the_kernel_of_the_untrained_network() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(40) % 2
    x = torch.randn(40, 4, generator=generator) + 4 * torch.eye(2, 4)[y]
    labels = torch.where(torch.arange(40) < 10, 1 - y, y)  # a quarter is wrong
    network, alarm = nn.Linear(4, 2), LeftOutAgreement(window=1, patience=1)
    left_out = kernel_leave_one_out(network, x, labels).predictions.clamp(0, 1)
    alarm.begin(network, Samples(x, labels))
    with torch.no_grad():
        network.weight.zero_()
        network.bias.zero_()
    found = alarm.observe(network, Samples(x, labels), 1)
    assert found["alarm.agreement"] == pytest.approx(float(left_out.sum(1).mean()) / 2)
    true, learnt = (nn.functional.one_hot(targets, 2).double() for targets in (y, labels))
    assert alarm.update(true, left_out, 2)["alarm.agreement"] > alarm.update(learnt, left_out, 3)["alarm.agreement"]
    assert (alarm.raised_at, alarm.peak) == (3, 2)
