"""Canaries: labels given and restored, margins and the noise-rate bound against closed forms, and in a training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.base.specs import TrainingSpec
from gapscope.penalties.base import Penalty
from gapscope.training.alarms.canaries import Canaries, CanaryAlarm
from gapscope.training.loop import train
from gapscope.training.monitor import Monitor


def test_canaries_have_another_label_and_get_theirs_back() -> None:
    labels = torch.arange(6000) % 5
    canaries = Canaries(labels)
    changed = (canaries.labels != labels).nonzero()[:, 0]
    assert torch.equal(changed, canaries.positions) and len(changed) == 30
    assert len(Canaries(labels[:100]).positions) == 24
    steps = (canaries.labels - labels)[changed] % 5
    assert set(steps.tolist()) == {1, 2, 3, 4}
    kept = canaries.labels
    canaries.restore()
    assert torch.equal(kept, labels)


def sequence(*pairs: tuple[float, float]) -> list[torch.Tensor]:
    """Logits of two classes that give label 0 these probabilities at 30 ordinary samples and at 10 canaries."""
    result = []
    for ordinary, false in pairs:
        p = torch.cat([torch.full((30,), ordinary), torch.full((10,), false)]).double()
        result.append(torch.stack([p.logit(), torch.zeros(40, dtype=torch.float64)], dim=1))
    return result


def test_the_alarm_by_hand() -> None:
    labels, false = torch.zeros(40, dtype=torch.int64), torch.arange(40) >= 30
    alarm = CanaryAlarm(
        Canaries(labels, n_classes=2, number=10),
        window=1,
        patience=1,
        fall=0.05,
        smallest_noise=0.0,
    )
    steps = sequence((0.5, 0.5), (0.8, 0.3), (0.9, 0.44), (0.95, 0.7))
    numbers = [
        alarm.update(outputs, labels, false, epoch) for epoch, outputs in enumerate(steps, start=1)
    ]
    assert [round(row["alarm.ordinary"] - row["alarm.canaries"], 6) for row in numbers] == [
        0,
        0.5,
        0.46,
        0.25,
    ]
    assert (alarm.raised_at, alarm.peak) == (4, 2)
    # margins are the logits of label 0: their means lie apart, so that no label is said to be wrong
    assert numbers[-1]["alarm.noise_rate"] == 0
    expected = torch.tensor([0.5, 0.3, 0.44, 0.7], dtype=torch.float64).logit().mean()
    assert float(alarm.margins[-1]) == pytest.approx(float(expected))
    assert torch.equal(alarm.canaries.labels, alarm.canaries.given)


def test_few_wrong_labels_raise_nothing() -> None:
    labels, false = torch.zeros(40, dtype=torch.int64), torch.arange(40) >= 30
    alarm = CanaryAlarm(
        Canaries(labels, n_classes=2, number=10), window=1, patience=1, smallest_noise=0.1
    )
    for epoch, outputs in enumerate(sequence((0.5, 0.5), (0.8, 0.3), (0.95, 0.7)), start=1):
        alarm.update(outputs, labels, false, epoch)
    assert alarm.noise_rate < 0.1 and not alarm.raised
    assert not torch.equal(alarm.canaries.labels, alarm.canaries.given)


def test_a_training_restores_the_labels_it_reads_when_the_alarm_is_raised(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (80,), generator=generator)
    x = torch.randn(80, 6, generator=generator) + 2 * torch.eye(2, 6)[y]

    def trained(epochs: int, folder: Path | None) -> tuple[nn.Module, Monitor, Canaries]:
        canaries = Canaries(y, n_classes=2)
        alarm = CanaryAlarm(canaries, window=1, patience=1, fall=0.0, smallest_noise=0.0)
        with torch.random.fork_rng():
            torch.manual_seed(1)
            network = nn.Sequential(nn.Linear(6, 200), nn.ReLU(), nn.Linear(200, 2))
        monitor = Monitor((x, canaries.labels), [], n_samples=30, alarm=alarm)
        settings = TrainingSpec(epochs=epochs, optimizer="adam", learning_rate=0.02, batch_size=16)
        train(network, (x, canaries.labels), settings, on_epoch=monitor, folder=folder)
        return network, monitor, canaries

    network, monitor, canaries = trained(14, None)
    assert monitor.alarm is not None and monitor.alarm.raised_at is not None
    assert torch.equal(canaries.labels, y)
    accuracy = float((network(x).argmax(1) == y).double().mean())
    assert accuracy > 0.97  # a network that continues with 24 false labels fits those
    trained(monitor.alarm.raised_at + 1, tmp_path)
    resumed, again, restored = trained(14, tmp_path)
    assert torch.equal(restored.labels, y) and again.rows == monitor.rows
    assert all(
        torch.equal(a, b) for a, b in zip(network.parameters(), resumed.parameters(), strict=True)
    )


def test_samples_on_another_device_raise() -> None:
    alarm = CanaryAlarm(Canaries(torch.zeros(60, dtype=torch.int64), n_classes=2))
    with pytest.raises(InvalidInput, match="Got 10 of 60"):
        alarm.observe(
            nn.Linear(2, 2), Samples(torch.zeros(10, 2), torch.zeros(10, dtype=torch.int64)), 1
        )


@pytest.mark.parametrize(
    ("labels", "match"),
    [
        (torch.tensor([0, 1, -100] * 20), "Got the label -100; canaries need classes"),
        (torch.tensor([0, 1, -1] * 20), "Got the label -1"),
        (torch.tensor([0, 1, 5] * 20), "smaller than the number of classes, 3; got 5"),
        (torch.zeros(0, dtype=torch.int64), "Got 0 labels; canaries need at least 4"),
    ],
)
def test_labels_outside_the_classes_are_no_canaries(labels: torch.Tensor, match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        Canaries(labels, n_classes=3)


@pytest.mark.parametrize("form", ["labels of the data", "another order", "fewer", "more"])
def test_a_monitor_of_other_labels_than_the_canaries_raises(form: str) -> None:
    y = torch.arange(80) % 3
    canaries = Canaries(y)
    labels = {
        "labels of the data": y,
        "another order": canaries.labels.flip(0),
        "fewer": canaries.labels[:60],
        "more": canaries.labels.repeat(2),
    }[form]
    with pytest.raises(InvalidInput, match=r"not canaries\.labels"):
        Monitor((torch.rand(len(labels), 3), labels), [], alarm=CanaryAlarm(canaries))


def test_a_part_of_the_samples_without_all_canaries_raises() -> None:
    canaries = Canaries(torch.arange(80) % 3)
    data = torch.rand(60, 3), canaries.labels[:60]
    with pytest.raises(InvalidInput, match="Pass all training samples"):
        Monitor(data, [], n_samples=20, alarm=CanaryAlarm(canaries))


def test_a_training_without_the_canaries_of_its_monitor_raises() -> None:
    x, y = torch.rand(80, 3), torch.arange(80) % 3
    canaries = Canaries(y)
    monitor = Monitor((x, canaries.labels), [], alarm=CanaryAlarm(canaries))
    with pytest.raises(InvalidInput, match=r"not canaries\.labels"):
        train(nn.Linear(3, 3), (x, y), TrainingSpec(epochs=1), on_epoch=monitor)


def test_a_loop_with_other_labels_than_the_canaries_raises() -> None:
    x, y = torch.rand(80, 3), torch.arange(80) % 3
    with pytest.raises(InvalidInput, match=r"not canaries\.labels"):
        CanaryAlarm(Canaries(y)).observe(nn.Linear(3, 3), Samples(x, y), 1)


def as_data(form: str, x: torch.Tensor, labels: torch.Tensor) -> Any:
    pairs = TensorDataset(x, labels)
    match form:
        case "data set":
            return pairs
        case "shuffling loader":
            return DataLoader(pairs, batch_size=16, shuffle=True)
        case "arrays":
            return x.numpy(), labels.numpy()
        case "subset":
            return Subset(pairs, range(len(x)))
        case "list":
            return list(zip(x, labels, strict=True))
        case _:
            return x, labels.clone()


FORMS = ["data set", "shuffling loader", "arrays", "subset", "list", "copies"]


@pytest.mark.parametrize("form", FORMS)
def test_training_continues_on_the_original_labels_in_every_form_of_data(form: str) -> None:
    y = torch.arange(60) % 3
    x = torch.eye(60)
    canaries = Canaries(y)
    alarm = CanaryAlarm(canaries)
    monitor = Monitor((x, canaries.labels), ["loss"], alarm=alarm)
    read = list[torch.Tensor]()

    class Reading(Penalty):
        """Penalty of 0 that keeps the targets of each batch."""

        needs_targets = True
        strength = 0.0

        def value(
            self,
            network: nn.Module,
            inputs: torch.Tensor,
            outputs: torch.Tensor,
            targets: torch.Tensor | None,
            observed: Any,
        ) -> torch.Tensor:
            assert targets is not None
            read.append(targets.clone())
            return 0 * outputs.sum()

    def restoring(network: nn.Module, row: dict[str, Any]) -> None:
        if row["epoch"] == 1:
            canaries.restore()

    restoring.alarm = monitor.alarm  # type: ignore[attr-defined]
    rows = list[torch.Tensor]()
    train(
        nn.Linear(60, 3),
        as_data(form, x, canaries.labels),
        TrainingSpec(epochs=2, batch_size=60),
        penalties=[Reading()],
        on_epoch=restoring,
        on_batch=lambda indices, outputs: rows.append(indices),
    )
    assert torch.equal(read[0], canaries._false[rows[0]])
    assert torch.equal(read[1], y[rows[1]])


class _Sorting:
    """Collate function that sorts the samples of a batch, so that their row numbers are lost."""

    def __call__(self, batch: list[tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
        batch = sorted(batch, key=lambda pair: int(pair[1]))
        return [torch.stack(part) for part in zip(*batch, strict=True)]


def test_a_training_that_cannot_find_the_canaries_raises() -> None:
    x, y = torch.eye(60), torch.arange(60) % 3
    canaries = Canaries(y)
    monitor = Monitor((x, canaries.labels), ["loss"], alarm=CanaryAlarm(canaries))
    data = DataLoader(TensorDataset(x, canaries.labels), batch_size=16, collate_fn=_Sorting())
    with pytest.raises(InvalidInput, match="in a fixed order"):
        train(nn.Linear(60, 3), data, TrainingSpec(epochs=1), on_epoch=monitor)
