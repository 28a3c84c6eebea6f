"""Checks of a running training: each fault is reported once; recordings stay below a fraction of the time."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from unittest import mock

import pytest
import torch
from torch import nn

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.results.outcomes import Finding, Fine, NotChecked
from gapscope.statistics.baselines import LooRow
from gapscope.training.monitor import Monitor
from gapscope.training.run_checks import RUN_CHECKS, RunState, batch_statistics, convergence
from support.standins import Clock


@pytest.fixture(autouse=True)
def _two_seconds_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gapscope.training.recordings.FREE_SECONDS", 2.0)


def blobs() -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.arange(120) % 3
    return 3 * nn.functional.one_hot(y, 3).float() + 0.3 * torch.randn(120, 3), y


def test_a_training_that_is_stuck_is_reported_once() -> None:
    x, y = blobs()
    monitor, network = Monitor((x, y), checks=["GS302"], max_time_fraction=1.0), nn.Linear(3, 3)
    for parameter in network.parameters():
        nn.init.zeros_(parameter)
    for epoch in range(1, 13):
        monitor.observe(network, epoch)
    (finding,) = monitor.findings
    assert (finding.code, finding.epoch) == ("GS302", 5)
    assert "GS302 at epoch 5" in repr(monitor) and finding.action in repr(monitor)


def test_a_loss_that_is_not_finite_is_reported() -> None:
    x, y = blobs()
    monitor, network = Monitor((x, y), checks=["GS302"], max_time_fraction=1.0), nn.Linear(3, 3)
    monitor.observe(network, 1)
    assert monitor.findings == ()
    nn.init.constant_(network.weight, math.inf)
    monitor.observe(network, 2)
    assert [finding.epoch for finding in monitor.findings] == [2] or math.isnan(
        monitor.rows[1]["loss"]
    )


def test_a_training_that_succeeds_is_not_reported() -> None:
    data, network = blobs(), nn.Linear(3, 3)
    monitor = Monitor(data, checks=["GS301", "GS302"], max_time_fraction=1.0)
    gs.train(network, data, gs.TrainingSpec(epochs=20), on_epoch=monitor)
    assert monitor.findings == () and monitor.alarm is not None and len(monitor.epochs) == 20


def test_an_alarm_that_is_raised_is_reported_with_the_best_epoch() -> None:
    monitor, network = Monitor(blobs(), checks=["GS301"], max_time_fraction=1.0), nn.Linear(3, 3)
    monitor.observe(network, 1)
    assert monitor.alarm is not None and monitor.findings == ()
    monitor.alarm.raised_at, monitor.alarm.peak = 2, 1
    monitor.observe(network, 2)
    monitor.observe(network, 3)
    (finding,) = monitor.findings
    assert (finding.code, finding.epoch) == ("GS301", 2) and "best epoch is 1" in finding.evidence


def test_a_check_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = Monitor(blobs(), checks=["GS203", "GS301"], max_time_fraction=None)
    network = nn.Linear(3, 3)
    monitor.observe(network, 1)
    broken = replace(RUN_CHECKS["GS203"], rule=mock.Mock(side_effect=ZeroDivisionError))
    monkeypatch.setitem(RUN_CHECKS, "GS203", broken)
    assert monitor.alarm is not None
    monitor.alarm.raised_at = 1
    with pytest.warns(UserWarning, match="GS203 could not be"):
        monitor.observe(network, 2)
    assert [finding.code for finding in monitor.findings] == ["GS301"]
    assert "GS203: not checked (failed at epoch 2)" in repr(monitor)
    assert math.isfinite(monitor.rows[1]["loss"])


@pytest.mark.thorough
def test_the_advice_of_a_raised_alarm_asserts_no_wrong_labels() -> None:
    monitor = Monitor(blobs(), checks=["GS301"], max_time_fraction=None)
    network = nn.Linear(3, 3)
    monitor.observe(network, 1)
    assert monitor.alarm is not None
    monitor.alarm.raised_at = 1
    monitor.observe(network, 2)
    (finding,) = monitor.findings
    assert "correct the labels" not in finding.action
    # the advice runs as it is printed
    calls = re.findall(r"gapscope\.\w+\([^)]*\)", finding.action)
    assert len(calls) == 2
    for call in calls:
        eval(call, {"gapscope": gs, "data": blobs()})


def test_findings_survive_a_checkpoint() -> None:
    x, y = blobs()
    first, second = (Monitor((x, y), checks=["GS302"], max_time_fraction=1.0) for _ in range(2))
    network = nn.Linear(3, 3)
    for parameter in network.parameters():
        nn.init.zeros_(parameter)
    for epoch in range(1, 9):
        first.observe(network, epoch)
    second.load_state_dict(first.state_dict())
    assert first.findings and second.findings == first.findings


@pytest.mark.parametrize(("fraction", "recordings"), [(0.1, 11), (0.25, 29), (1.0, 101)])
def test_recordings_take_at_most_a_fraction_of_the_time(
    monkeypatch: pytest.MonkeyPatch, fraction: float, recordings: int
) -> None:
    clock = Clock()
    monkeypatch.setattr("gapscope.training.monitor.time", clock)
    monitor = Monitor(
        blobs(),
        ["loss"],
        max_time_fraction=fraction,
        sinks=[lambda epoch, numbers: clock.sleep(1.0)],
    )
    network, begun = nn.Linear(3, 3), clock.now
    monitor.begin(network)
    clock.sleep(10.0)
    for epoch in range(1, 102):
        monitor.observe(network, epoch)
        clock.sleep(1.0)
    seconds = clock.now - begun
    assert monitor.cost.seconds <= fraction * seconds
    assert monitor.cost.seconds == len(monitor.epochs) == 101 - monitor.skipped
    assert abs(len(monitor.epochs) - recordings) <= 0.25 * recordings


@pytest.mark.parametrize(
    ("seconds", "recordings"),
    [(0.05, list(range(1, 31))), (0.2, [1, 2, 3, 5, 8, 12, 17, 24]), (3.0, [1])],
)
def test_the_free_seconds_are_spread_over_the_planned_epochs(
    monkeypatch: pytest.MonkeyPatch, seconds: float, recordings: list[int]
) -> None:
    clock = Clock()
    monkeypatch.setattr("gapscope.training.monitor.time", clock)
    monitor = Monitor(
        blobs(), ["loss"], epochs=30, sinks=[lambda epoch, numbers: clock.sleep(seconds)]
    )
    for epoch in range(1, 31):  # no time between the recordings
        monitor.observe(nn.Linear(3, 3), epoch)
    assert monitor.epochs == recordings
    assert monitor.n_due == 30 and monitor.skipped == 30 - len(recordings)
    every = Monitor(
        blobs(),
        ["loss"],
        max_time_fraction=None,
        sinks=[lambda epoch, numbers: clock.sleep(seconds)],
    )
    for epoch in range(1, 31):
        every.observe(nn.Linear(3, 3), epoch)
    assert len(every.epochs) == 30 and every.skipped == 0


def test_only_codes_of_a_training_run_are_accepted() -> None:
    with pytest.raises(InvalidInput, match="'GS101'"):
        Monitor(blobs(), checks=["GS101"])


def test_fewer_than_five_recordings_give_no_verdict() -> None:
    monitor = Monitor(blobs(), ["loss"], checks=["GS301", "GS302"])
    assert "GS301: not checked (no recordings)" in repr(monitor)
    for epoch in range(1, 5):
        monitor.observe(nn.Linear(3, 3), epoch)
    assert "seen 4 of 4 epochs: no verdict" in repr(monitor) and "no findings" not in repr(monitor)
    monitor.observe(nn.Linear(3, 3), 5)
    assert "GS301: no findings" in repr(monitor)


def test_epochs_that_were_skipped_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("gapscope.training.monitor.time", clock)
    monitors = [
        Monitor(
            blobs(),
            ["loss"],
            epochs=4,
            checks=["GS301", "GS302"],
            sinks=[lambda epoch, numbers: clock.sleep(3.0)],
        )
        for _ in range(2)
    ]
    for epoch in range(1, 5):
        monitors[0].observe(nn.Linear(3, 3), epoch)
    monitors[1].load_state_dict(monitors[0].state_dict())
    assert monitors[0].epochs == [1] and monitors[1].skipped == 3
    assert repr(monitors[0]).count("seen 1 of 4 epochs") == 3


def test_gs302_has_one_rule_in_a_running_and_in_a_finished_training() -> None:
    y = torch.arange(120) % 3
    samples, network = Samples(3 * nn.functional.one_hot(y, 3).float(), y), nn.Linear(3, 3)
    nn.init.zeros_(network.weight)
    nn.init.zeros_(network.bias)
    row = LooRow("last hidden features", "network", 0.99, torch.zeros(120, 3))
    flat = RunState(network, samples, losses=[1.1] * 6, epochs=6, kernel=lambda: row)
    running, over = convergence(flat), convergence(replace(flat, is_over=True))
    assert isinstance(running, Finding) and isinstance(over, Finding)
    assert "held-out samples 99 % by last hidden features" in running.evidence
    assert running == over and running.cost == pytest.approx(0.99 - 1 / 3)
    assert running.fixes[0] == "learning rate x 10"
    falling = replace(flat, losses=[1.1, 1.0, 0.9, 0.8, 0.7, 0.6])
    later = convergence(replace(falling, is_over=True))
    assert isinstance(convergence(falling), NotChecked)
    assert isinstance(later, Finding) and later.fixes[0] == "twice the epochs"
    broken = convergence(
        replace(falling, losses=[1.2, 1.1, 1.0, 0.9, float("nan"), 0.8, 0.7, 0.6], is_over=True)
    )
    assert (
        isinstance(broken, Finding) and "1 of 8 training losses are not finite" in broken.evidence
    )
    assert broken.fixes[0] == "twice the epochs"


def test_small_batches_and_stale_statistics_cost_accuracy() -> None:
    x, y = blobs()
    network = nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    gs.train(network, (x, y), gs.TrainingSpec(epochs=10, momentum=0.9))
    state = RunState(network, Samples(x, y), batch_size=2)
    small = batch_statistics(state)
    assert isinstance(small, Finding) and "batches of 2" in small.evidence
    assert isinstance(batch_statistics(replace(state, batch_size=60)), Fine)
    norm = network.get_submodule("1")
    assert isinstance(norm, nn.BatchNorm1d) and norm.running_mean is not None
    norm.running_mean += 30.0
    stale = batch_statistics(replace(state, batch_size=60))
    assert isinstance(stale, Finding) and stale.cost is not None and stale.cost > 0.3
    refresh = "gapscope.batch_norm.refresh_population(network, data)"
    assert refresh in stale.action
    gs.batch_norm.refresh_population(network, x)
    assert isinstance(batch_statistics(replace(state, batch_size=60)), Fine)
