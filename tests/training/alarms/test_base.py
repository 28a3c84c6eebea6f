"""What all alarms share: peaks by hand, states that go through JSON, names, and refusals of regression."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import nn

from gapscope.base.errors import InvalidInput
from gapscope.base.files import to_json
from gapscope.base.samples import Samples
from gapscope.measures.gradient_neighbours import gradient_neighbours
from gapscope.measures.kernel_leave_one_out import kernel_leave_one_out
from gapscope.training.alarms.base import Alarm, PeakAlarm, alarms, make_alarm
from gapscope.training.alarms.canaries import Canaries, CanaryAlarm
from gapscope.training.monitor import Monitor
from support.door_networks import bert, resnet18

# studies register more
ALARMS = [name for name, cls in alarms().items() if cls.__module__.startswith("gapscope.")]
REGRESSION = ("gradient_disparity",)


class Followed(PeakAlarm):
    """A number that somebody else computes."""

    def observe(self, network: nn.Module, samples: Samples, epoch: int) -> dict[str, float]:
        raise NotImplementedError


def fed(values: list[float], **settings: Any) -> Followed:
    alarm = Followed(**{"window": 1, "fall": 0.0, "patience": 1} | settings)
    for epoch, value in enumerate(values, start=1):
        alarm.follow(value, epoch)
    return alarm


@pytest.mark.parametrize(
    ("settings", "raised", "peak"),
    [
        ({}, 4, 7),  # an alarm is never taken back, and its guess continues
        ({"fall": 0.15}, 4, 7),
        ({"fall": 0.25}, 6, 7),
        ({"patience": 2}, 5, 7),
        ({"patience": 4}, None, 7),
        ({"window": 2}, 4, 8),  # means of two: - .3 .5 .4 .35 .25 .45 .75
    ],
)
def test_peaks_by_hand(settings: dict[str, Any], raised: int | None, peak: int) -> None:
    alarm = fed([0.1, 0.5, 0.5, 0.3, 0.4, 0.1, 0.8, 0.7], **settings)
    assert (alarm.raised_at, alarm.peak) == (raised, peak)


def test_numbers_that_are_not_finite_are_passed_over() -> None:
    assert fed([0.5, math.nan, math.inf, 0.4]).raised_at == 4
    assert fed([math.nan, math.nan]).peak is None and fed([0.5] * 6).raised_at is None


def test_an_alarm_that_is_held_back_counts_from_when_it_is_not() -> None:
    alarm = Followed(window=1, fall=0.0, patience=2)
    for epoch, allowed in enumerate([True, False, False, True, True], start=1):
        alarm.follow(-float(epoch), epoch, allowed=allowed)
    assert alarm.raised_at == 5


def some(name: str, samples: Samples) -> Alarm:
    """An alarm of a name that can look at 24 samples with few classes."""
    if name == "canaries":
        return CanaryAlarm(Canaries(samples.y, number=6), window=1)
    small = {
        "shared_learning": {"neighbours": 4},
        "gradient_disparity": {"batch_size": 4, "patience": 1},
    }
    return make_alarm(name, **small.get(name, {}))


@pytest.mark.parametrize("name", ALARMS)
@pytest.mark.parametrize("make", [resnet18, bert])
def test_every_alarm_watches_the_networks_that_people_come_with(name: str, make: Any) -> None:
    network, data = make()
    labels = data[1] if isinstance(data, tuple) else data["labels"]
    before = {key: value.clone() for key, value in network.state_dict().items()}
    alarm = some(name, Samples(torch.zeros(len(labels), 1), labels))
    if isinstance(alarm, CanaryAlarm):
        labels.copy_(alarm.canaries.labels)
    monitor = Monitor(data, [], alarm=alarm)
    monitor.begin(network)
    numbers = [monitor.observe(network, epoch) for epoch in (1, 2)]
    assert all(set(row) == set(numbers[0]) and "alarm.raised" in row for row in numbers)
    assert all(isinstance(value, float) for row in numbers for value in row.values())
    assert monitor.alarm is not None and repr(monitor.alarm).startswith(
        type(monitor.alarm).__name__
    )
    assert all(torch.equal(before[key], value) for key, value in network.state_dict().items())


def noisy(n: int = 40) -> tuple[nn.Module, Samples]:
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 3))
    return network, Samples(
        torch.randn(n, 5, generator=generator), torch.randint(0, 3, (n,), generator=generator)
    )


def observations(
    alarm: Alarm, network: nn.Module, samples: Samples, epochs: range
) -> list[dict[str, float]]:
    """What an alarm says of a network that is disturbed a little more after each epoch."""
    generator, result = torch.Generator().manual_seed(epochs.start), []
    for epoch in epochs:
        result.append(alarm.observe(network, samples, epoch))
        with torch.no_grad():
            for parameter in network.parameters():
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return result


@pytest.mark.parametrize("name", ALARMS)
def test_an_interrupted_alarm_resumes_as_if_uninterrupted(name: str) -> None:
    network, samples = noisy()
    unbroken = some(name, samples)
    if isinstance(unbroken, CanaryAlarm):
        samples.y.copy_(unbroken.canaries.labels)
    observations(unbroken, network, samples, range(1, 4))
    kept = json.loads(to_json(unbroken.state_dict()))
    resumed = some(name, noisy()[1])
    resumed.load_state_dict(kept)
    assert resumed.state_dict() == unbroken.state_dict()
    both = [observations(alarm, noisy()[0], samples, range(4, 9)) for alarm in (unbroken, resumed)]
    assert to_json(both[0]) == to_json(both[1])
    assert (resumed.raised_at, resumed.peak) == (unbroken.raised_at, unbroken.peak)
    resumed.reset()
    assert (resumed.raised_at, resumed.peak) == (None, None)


def test_the_state_of_another_alarm_raises() -> None:
    with pytest.raises(InvalidInput, match="raised_at, peak, _recent"):
        make_alarm("joint").load_state_dict(make_alarm("gradient_disparity").state_dict())


@pytest.mark.parametrize("name", ALARMS)
def test_regression_is_watched_or_raises_one_message(name: str) -> None:
    network, classes = noisy()
    samples = Samples(
        classes.inputs, torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
    )
    alarm = some(name, classes)
    if name in REGRESSION:
        numbers = Monitor(samples, [], alarm=alarm).observe(network, 1)
        assert all(math.isfinite(value) for value in numbers.values())
    else:
        with pytest.raises(InvalidInput, match=f"{type(alarm).__name__} needs class labels"):
            Monitor(samples, [], alarm=alarm)


def test_an_alarm_without_a_setting_that_it_needs_is_refused() -> None:
    data = torch.rand(8, 3), torch.arange(8) % 2
    for build in (lambda: make_alarm("canaries"), lambda: Monitor(data, alarm="canaries")):
        with pytest.raises(InvalidInput, match=r"needs the setting 'canaries'.*CanaryAlarm\("):
            build()


class BothLogits(nn.Module):
    """The logits 0 and z of a network with one output z."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.network(x)
        return torch.cat([torch.zeros_like(z), z], 1)


def binary() -> tuple[nn.Sequential, Samples]:
    torch.manual_seed(0)
    y = torch.arange(60) % 2
    x = torch.randn(60, 6) + y[:, None]
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)), Samples(x, y)


@pytest.mark.parametrize("name", ["shared_learning", "canaries"])
def test_one_output_of_two_classes_is_the_logit_beside_0(name: str) -> None:
    network, samples = binary()
    numbers = list[dict[str, float]]()
    for each in (network, BothLogits(network)):
        alarm = make_alarm(name) if name != "canaries" else CanaryAlarm(Canaries(samples.y))
        data = samples
        if isinstance(alarm, CanaryAlarm):
            data = Samples(samples.inputs, alarm.canaries.labels)
        alarm.set_indices(torch.arange(60))
        alarm.begin(each, data)
        numbers.append(alarm.observe(each, data, 1))
    assert numbers[0] == pytest.approx(numbers[1], nan_ok=True)


def test_the_joint_alarm_of_one_output_is_that_of_both_logits() -> None:
    network, samples = binary()
    alarm = make_alarm("joint")
    alarm.begin(network, samples)
    numbers = alarm.observe(network, samples, 1)
    cosines = list[torch.Tensor]()
    weight = list(network.parameters())[2]
    for x, y in zip(samples.inputs, samples.y, strict=True):
        loss = nn.functional.binary_cross_entropy_with_logits(network(x), y[None].float())
        (gradient,) = torch.autograd.grad(loss, [weight])
        cosines.append(torch.cosine_similarity(-gradient.flatten(), weight.flatten(), dim=0))
    assert numbers["alarm.alignment"] == pytest.approx(torch.stack(cosines).mean().item(), rel=1e-4)
    both = BothLogits(network)
    loo = kernel_leave_one_out(both, samples.inputs, samples.y).predictions.clamp(0, 1).cpu()
    agreed = (both(samples.inputs).softmax(1) * loo).sum(1).mean()
    assert numbers["alarm.agreement"] == pytest.approx(agreed.item(), rel=1e-4)


def test_neighbours_in_gradient_space_of_one_output_are_those_of_both_logits() -> None:
    network, samples = binary()
    one, two = (
        gradient_neighbours(each, samples.inputs, samples.y, neighbours=5).scalars()
        for each in (network, BothLogits(network))
    )
    assert one == two
