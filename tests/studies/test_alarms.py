"""Criteria of the overfitting study: against dense gradients, SciPy, simulation and values by hand."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import binomtest, kurtosis
from torch import nn

from gapscope.base.samples import Samples
from gapscope_studies.overfitting_alarm.alarms import (
    Stop,
    alignment,
    evidence_criterion,
    excess_kurtosis,
    first_exceeded,
    prediction_changes,
    significant_rise,
)
from gapscope_studies.overfitting_alarm.rules import first_fall


@pytest.mark.parametrize("kind", ["classes", "regression"])
def test_the_evidence_criterion_against_dense_gradients(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    x = torch.randn(37, 5, generator=generator, dtype=torch.float64)
    if kind == "classes":
        targets, losses = torch.randint(0, 3, (37,), generator=generator), nn.CrossEntropyLoss()
    else:
        targets, losses = (
            torch.randn(37, 3, generator=generator, dtype=torch.float64),
            nn.MSELoss(reduction="sum"),
        )
    rows = torch.stack([
        torch.cat([part.flatten() for part in torch.autograd.grad(losses(network(a[None]), b[None]), parameters)])
        for parameters in [list(network.parameters())]
        for a, b in zip(x, targets, strict=True)
    ])  # fmt: skip
    expected = 1 - float((rows.mean(0) ** 2 / rows.var(0)).mean()) * 37
    assert evidence_criterion(network, Samples(x, targets)) == pytest.approx(expected, rel=1e-6)


def test_dead_weights_are_excluded_from_the_evidence() -> None:
    network = nn.Linear(3, 2, bias=False).double()
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[:, 2] = 0  # no sample says anything of the last column
    samples = Samples(x, torch.arange(20) % 2)
    smaller = nn.Linear(2, 2, bias=False).double()
    with torch.no_grad():
        smaller.weight.copy_(network.weight[:, :2])
    assert evidence_criterion(network, samples) == pytest.approx(
        evidence_criterion(smaller, Samples(x[:, :2], samples.targets))
    )


def test_gradients_without_a_signal_have_the_criterion_zero() -> None:
    # at zero weights the gradient is (1/2 - y) x with random labels: zero on average
    network = nn.Linear(400, 2, bias=False).double()
    nn.init.zeros_(network.weight)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 400, generator=generator, dtype=torch.float64)
    result = evidence_criterion(
        network, Samples(x, torch.randint(0, 2, (200,), generator=generator))
    )
    # 400 independent weights (those of the two classes are opposite): standard error sqrt(2 / 400) = .07
    assert abs(result) < 0.2


def test_a_criterion_must_be_exceeded_in_a_row() -> None:
    assert first_exceeded([-3.0, 0.1, -0.1, 0.1, 0.2], threshold=0.0, patience=2) == (4, 2)
    assert first_exceeded([0.1, 0.2], threshold=0.0, patience=2) == (1, 1)
    assert first_exceeded([0.1, -0.2], threshold=0.0, patience=2) is None


@pytest.mark.parametrize(("worse", "better"), [(3, 1), (12, 5), (40, 70), (60, 20)])
def test_a_rise_of_errors_is_significant_where_scipy_finds_it(worse: int, better: int) -> None:
    p = float(binomtest(worse, worse + better, alternative="greater").pvalue)
    before = torch.linspace(0.1, 1, 300)  # squared errors count by sign
    changes = torch.tensor([0.01] * worse + [-5.0] * better + [0.0] * (300 - worse - better))
    errors = torch.stack([before, before + changes])
    assert significant_rise(errors, 1.001 * p) == (1, int(errors.mean(1).argmin()))
    assert significant_rise(errors, 0.999 * p) is None


def test_false_alarms_of_a_whole_training_are_as_rare_as_promised() -> None:
    generator = torch.Generator().manual_seed(0)
    raised = 0
    for _ in range(200):
        hard = torch.rand(200, generator=generator)  # samples differ, observations do not
        errors = torch.stack(
            [(torch.rand(200, generator=generator) < 0.6 * hard).double() for _ in range(6)]
        )
        raised += significant_rise(errors, 0.2) is not None
    assert 0 < raised / 200 <= 0.2


# of ten samples change 8, 5, 3, 2, 2, 4, 6, 1
CHANGES = [8, 5, 3, 2, 2, 4, 6, 1]


@pytest.mark.parametrize(("patience", "fall", "stop"), [
    (1, 0.0, Stop(6, 5)),  # means 16/3, 10/3, 7/3, 8/3, 4: the smallest is that of the changes 3 to 5
    (2, 0.0, Stop(7, 5)), (4, 0.0, None), (1, 0.1, Stop(7, 5)),
])  # fmt: skip
def test_prediction_changes_rise_after_their_first_local_minimum(
    patience: int, fall: float, stop: Stop | None
) -> None:
    rows = torch.zeros(9, 10, dtype=torch.int64)
    for epoch, number in enumerate(CHANGES, start=1):
        rows[epoch] = rows[epoch - 1]
        rows[epoch, :number] += 1
    changes = prediction_changes(rows)
    assert math.isnan(changes[0]) and changes[1:] == [number / 10 for number in CHANGES]
    assert (
        first_fall([-change for change in changes], window=3, fall=fall, patience=patience) == stop
    )


def test_alignment_over_kurtosis_against_scipy() -> None:
    cosines = torch.rand(30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert alignment(cosines) == pytest.approx(
        float(cosines.mean()) / (float(kurtosis(cosines)) + 1.2)
    )
    assert (
        excess_kurtosis(torch.tensor([0.0, 1.0] * 5)) == pytest.approx(-2)
        and excess_kurtosis(torch.ones(4)) == 0
    )
    two_modes = torch.tensor([0.2, 0.6] * 5)  # divided by the smallest denominator
    assert alignment(two_modes, smallest=0.05) == pytest.approx(0.4 / 0.05)
    assert alignment(two_modes, kurtosis=False) == pytest.approx(0.4)
    assert first_fall([0.9, 0.8, 0.1, 0.3, 0.2], window=1, fall=0, patience=1, skip=2) == Stop(4, 3)
