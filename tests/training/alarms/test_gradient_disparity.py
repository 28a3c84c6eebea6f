"""Gradient disparity against a loop, for classes and for regression."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gapscope.base.errors import InvalidInput
from gapscope.base.randomness import derive_seed
from gapscope.base.samples import Samples
from gapscope.training.alarms.gradient_disparity import (
    GradientDisparityAlarm,
    scaled_gradient_disparity,
)


def tiny(targets: torch.Tensor) -> tuple[nn.Module, Samples]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return network, Samples(x, targets)


LABELS = torch.randint(0, 3, (40,), generator=torch.Generator().manual_seed(1))
VALUES = torch.randn(40, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("targets", [LABELS, VALUES], ids=["classes", "regression"])
def test_disparity_against_a_loop(targets: torch.Tensor) -> None:
    network, samples = tiny(targets)
    result = GradientDisparityAlarm(batch_size=6, batches=5, seed=3).observe(network, samples, 7)[
        "alarm.disparity"
    ]
    generator = torch.Generator().manual_seed(derive_seed(3, "mini-batches of epoch 7"))
    order, gradients = torch.randperm(40, generator=generator), []
    for i in range(5):
        batch = order[6 * i : 6 * i + 6]
        outputs = network(samples.inputs[batch])
        if targets is LABELS:
            losses = -outputs.log_softmax(1)[torch.arange(6), targets[batch]]
        else:
            losses = (outputs - targets[batch]).square().sum(1)
        network.zero_grad()
        (losses.mean() / losses.std()).backward()
        gradients.append(
            torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])
        )
    distances = [float((gradients[i] - gradients[j]).norm()) for i in range(5) for j in range(i)]
    assert result == pytest.approx(sum(distances) / 10)


def test_five_observations_above_the_smallest_raise_it() -> None:
    alarm = GradientDisparityAlarm()
    for epoch, value in enumerate([3.0, 2.0, 1.0, 1.1, 1.2, 1.3, 1.2, 1.1], start=1):
        alarm.update(value, epoch)
    assert (alarm.raised_at, alarm.peak) == (8, 3)
    assert "the score on new data" in repr(alarm)


def test_too_few_samples_are_named() -> None:
    network, samples = tiny(LABELS)
    with pytest.raises(InvalidInput, match="32 samples; got 40"):
        scaled_gradient_disparity(
            network, samples, batch_size=32, batches=4, generator=torch.Generator()
        )
