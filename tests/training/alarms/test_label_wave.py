"""Prediction changes by hand, and from the training pass of the loop."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.base.specs import TrainingSpec
from gapscope.training.alarms.label_wave import LabelWave
from gapscope.training.loop import train

# of ten samples change 8, 5, 3, 2, 2, 4, 6, 1
CHANGES = [8, 5, 3, 2, 2, 4, 6, 1]


def predictions(changes: list[int]) -> list[torch.Tensor]:
    found = [torch.zeros(10, dtype=torch.int64)]
    for number in changes:
        found.append(found[-1].clone())
        found[-1][:number] += 1
    return found


def test_the_first_local_minimum_of_the_mean_of_three_by_hand() -> None:
    wave = LabelWave(window=3, patience=1)
    numbers = [wave.update(row, epoch) for epoch, row in enumerate(predictions(CHANGES), start=1)]
    assert math.isnan(numbers[0]["alarm.prediction_changes"])
    assert [row["alarm.prediction_changes"] for row in numbers[1:]] == [number / 10 for number in CHANGES]
    # means 16/3, 10/3, 7/3, 8/3, 4: the smallest is that of the epochs 4 to 6
    assert (wave.raised_at, wave.peak) == (7, 6)


@pytest.mark.parametrize(("settings", "raised"), [({"patience": 2}, 8), ({"patience": 4}, None), ({"fall": 0.1}, 8)])
def test_patience_and_fall_wait(settings: dict[str, float], raised: int | None) -> None:
    wave = LabelWave(window=3, **{"patience": 1, **settings})  # type: ignore[arg-type]
    for epoch, row in enumerate(predictions(CHANGES), start=1):
        wave.update(row, epoch)
    assert wave.raised_at == raised


def test_other_samples_are_refused() -> None:
    wave = LabelWave()
    wave.update(torch.zeros(5, dtype=torch.int64), 1)
    with pytest.raises(InvalidInput, match=r"predictions of 4 samples; .* each time, 5"):
        wave.update(torch.zeros(4, dtype=torch.int64), 2)


def test_the_training_pass_gives_the_predictions_of_every_sample_once() -> None:
    generator = torch.Generator().manual_seed(0)
    samples = Samples(torch.randn(37, 4, generator=generator), torch.randint(0, 3, (37,), generator=generator))
    with torch.random.fork_rng():
        torch.manual_seed(1)
        network = nn.Linear(4, 3)
    start = [p.detach().clone() for p in network.parameters()]
    seen: list[torch.Tensor] = []
    predicted = torch.full((37,), -1)

    def on_batch(positions: torch.Tensor, outputs: torch.Tensor) -> None:
        seen.append(positions)
        predicted[positions] = outputs.argmax(1)

    wave = LabelWave(window=1, patience=1)
    train(network, samples, TrainingSpec(learning_rate=1e-12, batch_size=10, epochs=2), on_batch=on_batch,
          on_epoch=lambda network, row: row.update(wave.update(predicted, row["epoch"])))  # fmt: skip
    assert torch.cat(seen[:4]).sort().values.tolist() == list(range(37))
    expected = (samples.inputs @ start[0].T + start[1]).argmax(1)
    assert torch.equal(predicted, expected)
    assert wave.peak == 2
