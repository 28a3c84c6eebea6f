"""The alarm of shared learning and the joint one: closed forms, oracles, training with and without wrong labels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.gradients.kernel import most_similar
from gapscope.measures.kernel_leave_one_out import kernel_leave_one_out
from gapscope.training.alarms.joint import JointAlarm, observed_alignments
from gapscope.training.alarms.shared_learning import SharedLearning
from gradients.reference import Wrapped


def fixed_network(probabilities: torch.Tensor) -> tuple[nn.Module, torch.Tensor]:
    """A network that gives sample i (a unit vector) the probabilities of row i, and the samples."""
    network = nn.Linear(len(probabilities), probabilities.shape[1], bias=False)
    with torch.no_grad():
        network.weight.copy_(probabilities.log().T)
    return network, torch.eye(len(probabilities))


def test_own_and_shared_probabilities_by_hand() -> None:
    network, x = fixed_network(torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]]))
    alarm = SharedLearning(neighbours=2, weight=3.0)  # everybody is everybody's neighbour
    numbers = alarm.observe(network, Samples(x, torch.tensor([0, 0, 1])), 1)
    own, shared = (0.9 + 0.6 + 0.8) / 3, (0.4 + 0.55 + 0.25) / 3
    assert numbers == {
        "alarm.own_probability": pytest.approx(own),
        "alarm.shared_probability": pytest.approx(shared),
        "alarm.support": pytest.approx(shared - 3 * (own - shared)),
        "alarm.fall": 0.0,
        "alarm.conflict": pytest.approx(
            2 / 3
        ),  # neighbours of the first and the last say (.4, .6) and (.75, .25)
        "alarm.raised": 0.0,
    }


def test_both_sides_of_a_difference_use_the_neighbours_of_today() -> None:
    labels = torch.tensor([0, 0, 1, 1])
    good, bad = torch.tensor([[1], [0], [3], [2]]), torch.tensor([[2], [3], [0], [1]])
    sure = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.1, 0.9], [0.1, 0.9]], dtype=torch.float64)
    alarm = SharedLearning(threshold=0)
    alarm.update(sure, labels, good, 1)
    numbers = alarm.update(sure, labels, bad, 2)
    assert (numbers["alarm.support"], numbers["alarm.fall"]) == (
        pytest.approx(3 * 0.1 - 2 * 0.9),
        0.0,
    )
    assert not alarm.raised


def test_neighbours_are_recomputed_at_growing_distances(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    samples = Samples(
        torch.randn(30, 4, generator=generator), torch.randint(0, 3, (30,), generator=generator)
    )
    computed: list[int] = []
    epoch = 0

    def noted(*arguments: Any) -> torch.Tensor:
        computed.append(epoch)
        return most_similar(*arguments)

    monkeypatch.setattr("gapscope.training.alarms.shared_learning.most_similar", noted)
    alarm = SharedLearning(neighbours=3)
    for epoch in range(1, 20):
        alarm.observe(nn.Linear(4, 3), samples, epoch)
    assert computed == [1, 2, 3, 5, 8, 12, 18]


def rows(*means: float, n: int = 100, spread: float = 0.1) -> list[torch.Tensor]:
    """Probabilities [n, 2]; the first column has these means, and scatters in all but the first."""
    noise = torch.linspace(-1, 1, n, dtype=torch.float64)
    noise = spread * noise / noise.std()
    first = [mean + (noise if i else torch.zeros_like(noise)) for i, mean in enumerate(means)]
    return [torch.stack([values, 1 - values], dim=1) for values in first]


def fed(alarm: SharedLearning, values: list[torch.Tensor]) -> SharedLearning:
    """Every sample is its own neighbour, so that s_i is the probability of its label 0."""
    n = len(values[0])
    for epoch, value in enumerate(values, start=1):
        alarm.update(value, torch.zeros(n, dtype=torch.int64), torch.arange(n)[:, None], epoch)
    return alarm


@pytest.mark.parametrize(("fall", "raised"), [(0.029, None), (0.031, 2)])
def test_the_threshold_is_in_standard_errors(fall: float, raised: int | None) -> None:
    # the standard error of the mean difference is 0.1 / sqrt(100) = 0.01
    alarm = fed(SharedLearning(threshold=3), rows(0.5, 0.5 - fall))
    assert (alarm.raised_at, alarm.raised, alarm.peak) == (raised, raised is not None, 1)


@pytest.mark.parametrize(("fall", "raised"), [(0.019, None), (0.021, 2)])
def test_small_falls_do_not_count_however_sure(fall: float, raised: int | None) -> None:
    assert (
        fed(SharedLearning(smallest_fall=0.02), rows(0.5, 0.5 - fall, spread=0)).raised_at == raised
    )


def test_patience_counts_observations_in_a_row() -> None:
    values = rows(0.5, 0.3, 0.499, 0.3, 0.499, 0.3, 0.3, spread=0.01)
    assert fed(SharedLearning(patience=2), values).raised_at == 7
    assert fed(SharedLearning(patience=1), values).raised_at == 2
    assert fed(SharedLearning(patience=3), values).raised_at is None


@pytest.mark.parametrize(("smallest_conflict", "raised"), [(0.25, 2), (0.26, None)])
def test_no_alarm_where_labels_agree_with_their_neighbours(
    smallest_conflict: float, raised: int | None
) -> None:
    labels = torch.tensor([0] * 75 + [1] * 25)  # each has the whole first class as its neighbours
    neighbours = torch.arange(75).expand(100, 75)
    alarm = SharedLearning(threshold=3, smallest_conflict=smallest_conflict)
    alarm.update(torch.tensor([[0.75, 0.25]]).expand(100, 2), labels, neighbours, 1)
    numbers = alarm.update(torch.eye(2)[labels], labels, neighbours, 2)
    assert (alarm.raised_at, numbers["alarm.conflict"]) == (raised, 0.25)


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
    assert isinstance(weight, torch.Tensor)
    for x, y in zip(samples.inputs, samples.y, strict=True):
        (gradient,) = torch.autograd.grad(
            nn.functional.cross_entropy(network(x[None]), y[None]), weight
        )
        result.append(-(gradient * weight).sum() / (gradient.norm() * weight.norm()))
    return torch.stack(result).detach()


def test_each_signal_against_its_own_oracle() -> None:
    network, samples = tiny()
    joint, shared = JointAlarm(), SharedLearning(neighbours=8, weight=0.5)
    joint.begin(network, samples)
    loo = kernel_leave_one_out(network, samples.inputs, samples.y).predictions.clamp(0, 1)
    generator = torch.Generator().manual_seed(1)
    for epoch in range(1, 5):
        result, cosines = (
            joint.observe(network, samples, epoch),
            cosines_by_autograd(network, samples),
        )
        assert torch.allclose(observed_alignments(network, samples, samples.y), cosines)
        signals = [
            float((network(samples.inputs).detach().softmax(1) * loo).sum(1).mean()),
            float(cosines.mean()),
            shared.observe(network, samples, epoch)["alarm.support"],
        ]
        assert [
            result[f"alarm.{name}"] for name in ("agreement", "alignment", "support")
        ] == pytest.approx(signals)
        assert result["alarm.value"] == pytest.approx(sum(signals))
        with torch.no_grad():
            for parameter in network.parameters():
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)


def test_outputs_and_features_that_change_in_place() -> None:
    network, samples = tiny()
    cosines = observed_alignments(network, samples, samples.y)

    spoiled = Wrapped(
        lambda net, x: (net.layers[2](h := net.layers[:2](x)), h.zero_())[0], layers=network
    )
    assert torch.equal(observed_alignments(spoiled, samples, samples.y), cosines)
    rectified = nn.Sequential(nn.Linear(5, 3).double(), nn.ReLU(inplace=True))
    with pytest.raises(InvalidInput, match="JointAlarm"):
        observed_alignments(rectified, samples, samples.y)


def test_a_fall_of_the_sum_raises_it() -> None:
    alarm, labels = JointAlarm(window=1, patience=1, fall=0.1), torch.zeros(8, dtype=torch.int64)
    neighbours, predictions = (
        (torch.arange(8)[:, None] + 1) % 8,
        torch.tensor([[0.5, 0.5]]).expand(8, 2),
    )
    for epoch, p in enumerate([0.5, 0.8, 0.75, 0.6], start=1):
        probabilities = torch.tensor([[p, 1 - p]]).expand(8, 2)  # agreement 1/2, support p
        alarm.update(probabilities, labels, predictions, neighbours, torch.zeros(8), epoch)
    assert (alarm.raised_at, alarm.peak) == (4, 2)


def test_outputs_that_do_not_come_from_a_linear_layer_raise() -> None:
    network = nn.Sequential(nn.Linear(5, 4), nn.Tanh())
    samples = Samples(torch.randn(6, 5), torch.tensor([0, 1, 2, 3, 0, 1]))
    with pytest.raises(InvalidInput, match=r"last layer, an nn\.Linear"):
        JointAlarm().observe(network, samples, 1)
