"""The joint alarm: each signal against its own oracle, their sum, and networks it cannot observe."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.measures.kernel_leave_one_out import kernel_leave_one_out
from gapscope.training.alarms.joint import JointAlarm, agreement, observed_alignments
from gapscope.training.alarms.shared_learning import SharedLearning


def tiny(n: int = 32) -> tuple[nn.Sequential, Samples]:
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 3)).double()
    x = torch.randn(n, 5, generator=generator, dtype=torch.float64)
    return network, Samples(x, torch.randint(0, 3, (n,), generator=generator))


def cosines_by_autograd(network: nn.Sequential, samples: Samples) -> torch.Tensor:
    """Cosine of the last layer's weight and each sample's negative loss gradient by it."""
    weight, result = network[-1].weight, []
    assert isinstance(weight, torch.Tensor) and samples.targets is not None
    for x, y in zip(samples.inputs, samples.targets, strict=True):
        (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(network(x[None]), y[None]), weight)
        result.append(-(gradient * weight).sum() / (gradient.norm() * weight.norm()))
    return torch.stack(result).detach()


def test_each_signal_against_its_own_oracle() -> None:
    network, samples = tiny()
    assert samples.targets is not None
    joint, shared = JointAlarm(neighbours=6), SharedLearning(neighbours=6, weight=0.5)
    joint.begin(network, samples)
    loo = kernel_leave_one_out(network, samples.inputs, samples.targets).predictions.clamp(0, 1)
    generator = torch.Generator().manual_seed(1)
    for epoch in range(1, 5):
        result, cosines = joint.observe(network, samples, epoch), cosines_by_autograd(network, samples)
        assert torch.allclose(observed_alignments(network, samples, samples.targets), cosines)
        signals = [
            float((network(samples.inputs).detach().softmax(1) * loo).sum(1).mean()),
            float(cosines.mean()),
            shared.observe(network, samples, epoch)["alarm.support"],
        ]
        assert [result[f"alarm.{name}"] for name in ("agreement", "alignment", "support")] == pytest.approx(signals)
        assert result["alarm.value"] == pytest.approx(sum(signals))
        with torch.no_grad():
            for parameter in network.parameters():
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)


def test_agreement_by_hand() -> None:
    p, b = torch.tensor([[0.9, 0.1], [0.3, 0.7]]), torch.tensor([[1.0, 0.0], [0.5, 0.25]])
    assert agreement(p, b) == pytest.approx((0.9 + 0.15 + 0.175) / 2)


def test_a_fall_of_the_sum_raises_it() -> None:
    alarm, labels = JointAlarm(window=1, patience=1, fall=0.1), torch.zeros(8, dtype=torch.int64)
    neighbours, predictions = (torch.arange(8)[:, None] + 1) % 8, torch.tensor([[0.5, 0.5]]).expand(8, 2)
    for epoch, p in enumerate([0.5, 0.8, 0.75, 0.6], start=1):
        probabilities = torch.tensor([[p, 1 - p]]).expand(8, 2)  # agreement 1/2, support p
        alarm.update(probabilities, labels, predictions, neighbours, torch.zeros(8), epoch)
    assert (alarm.raised_at, alarm.peak) == (4, 2)


def test_outputs_that_do_not_come_from_a_linear_layer_raise() -> None:
    network = nn.Sequential(nn.Linear(5, 4), nn.Tanh())
    samples = Samples(torch.randn(6, 5), torch.tensor([0, 1, 2, 3, 0, 1]))
    with pytest.raises(InvalidInput, match=r"whose outputs are those of its last layer, an nn\.Linear"):
        JointAlarm().observe(network, samples, 1)
