"""A monitor of other data or of another network has no verdict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import gapscope as gs
from gapscope.results.outcomes import NotChecked
from gapscope.training.alarms.base import make_alarm

X = torch.randn(120, 6, generator=torch.Generator().manual_seed(0))
Y = (X @ torch.randn(6, 3, generator=torch.Generator().manual_seed(1))).argmax(1)


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """Samples with random noise."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return X[index] + 0.1 * torch.randn(6), Y[index]


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """Samples in another order in each pass."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return ((X[i], Y[i]) for i in torch.randperm(len(X)).tolist())


def monitored(data: Any = (X, Y), epochs: int = 6, **settings: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    network = nn.Linear(6, 3)
    monitor = gs.Monitor(data, checks=["GS301"], max_time_fraction=None, n_samples=64, **settings)
    gs.train(network, data, gs.TrainingSpec(epochs=epochs, batch_size=20), on_epoch=monitor)
    return network, monitor


def reason(network: Any, data: Any, monitor: Any) -> str:
    """The reason why GS301 has no verdict; empty if it has one."""
    result = gs.check(network, data, monitor=monitor, only="GS301")
    return result.not_checked[0].reason if result.not_checked else ""


@pytest.mark.parametrize("data", [(X, (Y + 1) % 3), (X.flip(1), Y.flip(0)), (X[:, :4], Y.flip(0))])
def test_a_monitor_of_other_samples_has_no_verdict(data: tuple[Tensor, Tensor]) -> None:
    _, monitor = monitored()
    network = nn.Linear(data[0].shape[1], 3)
    assert "other samples" in reason(network, data, monitor)


def test_the_losses_of_a_monitor_of_other_samples_are_not_used() -> None:
    network, monitor = monitored()
    monitor.checks.losses = [float("nan")] * 6
    result = gs.check(network, (X, (Y + 1) % 3), monitor=monitor, only="GS302")
    assert "not finite" not in str(result)


ORDER = torch.randperm(120, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(
    "data",
    [
        (X, Y),
        (X.double(), Y[:, None]),
        (X[ORDER], Y[ORDER]),
        (X[:100], Y[:100]),
        DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True),
        DataLoader(Augmented(), batch_size=16, shuffle=True),
        Stream(),
    ],
)
def test_other_forms_of_the_monitored_samples_have_a_verdict(data: Any) -> None:
    network, monitor = monitored()
    assert reason(network, data, monitor) == ""


@pytest.mark.parametrize("data", [DataLoader(Augmented(), batch_size=16, shuffle=True), Stream()])
def test_a_monitor_of_random_data_has_a_verdict(data: Any) -> None:
    network, monitor = monitored(data)
    assert reason(network, data, monitor) == reason(network, (X, Y), monitor) == ""


def test_the_original_labels_of_canaries_are_no_other_samples() -> None:
    canaries = gs.Canaries(Y)
    network, monitor = monitored((X, canaries.labels), alarm=gs.CanaryAlarm(canaries))
    assert reason(network, (X, Y), monitor) == ""


def test_a_network_that_the_monitor_did_not_see_has_no_verdict() -> None:
    network, monitor = monitored()
    torch.manual_seed(0)
    assert "not the one that the monitor saw" in reason(nn.Linear(6, 3), (X, Y), monitor)
    with torch.no_grad():
        network.weight *= 1.02
    assert "not the one of a recording" in reason(network, (X, Y), monitor)
    monitor.alarm.raised_at = 3
    (finding,) = gs.check(network, (X, Y), monitor=monitor, only="GS301").findings
    assert "not the one of a recording" in finding.evidence


def test_a_monitor_of_two_networks_has_no_verdict() -> None:
    network, monitor = monitored()
    with pytest.warns(UserWarning, match="7 is of another"):
        monitor.observe(nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)), 7)
    assert "two networks" in reason(network, (X, Y), monitor)


def test_the_restored_best_epoch_has_a_verdict() -> None:
    early, _ = monitored(epochs=3)
    _, monitor = monitored(epochs=6)
    assert reason(early, (X, Y), monitor) == ""


def test_a_network_after_the_last_recording_has_a_verdict() -> None:
    network, monitor = monitored(epochs=23, every=4)
    assert monitor.epochs[-1] == 20
    assert reason(network, (X, Y), monitor) == ""


def test_labels_without_errors_need_no_correction() -> None:
    x = X + 6 * nn.functional.one_hot(Y, 6)
    network, monitor = monitored((x, Y))
    monitor.alarm.raised_at = 3
    result = gs.check(network, (x, Y), monitor=monitor, only=["GS102", "GS301"])
    (finding,) = result.findings
    assert "correct the labels" not in finding.action and "limits" not in result.headline


def test_alarms_are_not_judged_for_regression() -> None:
    targets = X @ torch.ones(6, 1)
    alarm = make_alarm("gradient_disparity", batch_size=8)
    monitor = gs.Monitor((X, targets), ["loss"], alarm=alarm, checks="GS301")
    network = nn.Linear(6, 1)
    monitor.observe(network, 1)
    alarm.raised_at = 1
    monitor.observe(network, 2)
    assert monitor.findings == ()
    assert "accuracy" not in repr(monitor.alarm)
    result = gs.check(network, (X, targets), monitor=monitor, only="GS301")
    assert isinstance(result.not_checked[0], NotChecked) and not result.findings
