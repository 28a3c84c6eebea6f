"""Baseline alarms of the overfitting study, by hand and against SciPy."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import kurtosis

from gapscope_studies.overfitting_alarm.baseline_alarms import (
    GradientWeightAlignment,
    LabelWave,
    LeftOutAgreement,
    excess_kurtosis,
)

# of ten samples change 8, 5, 3, 2, 2, 4, 6, 1
CHANGES = [8, 5, 3, 2, 2, 4, 6, 1]


def predictions() -> list[torch.Tensor]:
    found = [torch.zeros(10, dtype=torch.int64)]
    for number in CHANGES:
        found.append(found[-1].clone())
        found[-1][:number] += 1
    return found


def test_label_wave_is_raised_at_the_first_local_minimum_of_the_mean_of_three() -> None:
    wave = LabelWave(window=3, patience=1, fall=0)
    numbers = [wave.update(row, epoch) for epoch, row in enumerate(predictions(), start=1)]
    assert math.isnan(numbers[0]["alarm.prediction_changes"])
    assert [row["alarm.prediction_changes"] for row in numbers[1:]] == [number / 10 for number in CHANGES]
    # means 16/3, 10/3, 7/3, 8/3, 4: the smallest is that of the epochs 4 to 6
    assert (wave.raised_at, wave.peak) == (7, 6)


@pytest.mark.parametrize(("patience", "fall", "raised"), [(2, 0.0, 8), (4, 0.0, None), (1, 0.1, 8)])
def test_patience_and_fall_delay_an_alarm(patience: int, fall: float, raised: int | None) -> None:
    wave = LabelWave(window=3, patience=patience, fall=fall)
    for epoch, row in enumerate(predictions(), start=1):
        wave.update(row, epoch)
    assert wave.raised_at == raised


def test_alignment_over_kurtosis_against_scipy() -> None:
    cosines = torch.rand(30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    value = GradientWeightAlignment(window=1, fall=0, patience=1, skip=0).update(cosines, 1)["alarm.value"]
    assert value == pytest.approx(float(cosines.mean()) / (float(kurtosis(cosines)) + 1.2))
    assert excess_kurtosis(torch.tensor([0.0, 1.0] * 5)) == pytest.approx(-2)
    assert excess_kurtosis(torch.ones(4)) == 0


@pytest.mark.parametrize(("with_kurtosis", "expected"), [(True, 0.4 / 0.05), (False, 0.4)])
def test_two_modes_are_divided_by_the_smallest_denominator(with_kurtosis: bool, expected: float) -> None:
    alarm = GradientWeightAlignment(window=1, fall=0, patience=1, skip=0, kurtosis=with_kurtosis, smallest=0.05)
    assert alarm.update(torch.tensor([0.2, 0.6] * 5), 1)["alarm.value"] == pytest.approx(expected)


def test_first_observations_are_skipped() -> None:
    alarm = GradientWeightAlignment(window=1, fall=0, patience=1, skip=2, kurtosis=False)
    for epoch, mean in enumerate([0.9, 0.8, 0.1, 0.3, 0.2], start=1):
        alarm.update(torch.full((4,), mean), epoch)
    assert (alarm.raised_at, alarm.peak) == (5, 4)


def test_agreement_falls_with_memorized_labels() -> None:
    loo, alarm = torch.tensor([[0.8, 0.2]]).expand(6, 2), LeftOutAgreement(window=1, fall=0, patience=1)
    for epoch, p in enumerate([0.5, 0.9, 0.6], start=1):
        alarm.update(torch.tensor([[p, 1 - p]]).expand(6, 2), loo, epoch)
    assert (alarm.raised_at, alarm.peak) == (3, 2)
