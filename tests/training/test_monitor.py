"""The monitor: no trace left in training, failures that do not end it, cost, and the gaps of dropout."""

from __future__ import annotations

import contextlib
import json
import math
import random
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from gapscope import check
from gapscope.base.errors import InvalidInput, ReplaceLayer, UnreadableFile
from gapscope.base.files import to_json
from gapscope.base.samples import Samples
from gapscope.base.specs import TrainingSpec
from gapscope.measures.measurement import measure
from gapscope.measures.ntk import ntk_logdet
from gapscope.measures.registry import get_measure
from gapscope.training.alarms.base import make_alarm
from gapscope.training.alarms.joint import JointAlarm
from gapscope.training.alarms.shared_learning import SharedLearning
from gapscope.training.loop import train
from gapscope.training.monitor import Monitor
from gapscope.training.recordings import MAX_FAILURES, Recordings
from support.standins import Clock


def make_samples(n: int = 60) -> Samples:
    generator = torch.Generator().manual_seed(0)
    return Samples(
        torch.randn(n, 6, generator=generator), torch.randint(0, 3, (n,), generator=generator)
    )


def make_network(
    *, batch_norm: bool = True, dropout: float = 0.5, width: int = 16
) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        norm = [nn.BatchNorm1d(width)] if batch_norm else []
        return nn.Sequential(
            nn.Linear(6, width), *norm, nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 3)
        )


def trained(on_epoch: Callable[..., None] | None, **settings: Any) -> tuple[nn.Module, Any]:
    network = make_network(**settings)
    result = train(
        network, make_samples(), TrainingSpec(epochs=4, batch_size=16), on_epoch=on_epoch
    )
    return network, result


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("every", [1, 2])
def test_weights_are_bit_identical_with_and_without_a_monitor(mode: Any, every: int) -> None:
    batch_norm = mode == "eval"
    alarm = SharedLearning(neighbours=5)
    monitor = Monitor(make_samples(), every=every, n_samples=20, mode=mode, alarm=alarm)
    plain, _ = trained(None, batch_norm=batch_norm)
    monitored, result = trained(monitor, batch_norm=batch_norm)
    for name, tensor in plain.state_dict().items():
        assert torch.equal(tensor, monitored.state_dict()[name]), name
    assert monitor.epochs == list(range(every, 5, every))
    assert ["ntk_logdet.rank" in row for row in result.history] == [
        e % every == 0 for e in range(1, 5)
    ]


def test_the_numbers_are_those_of_the_measures_on_the_chosen_samples() -> None:
    network, monitor = (
        make_network(),
        Monitor(make_samples(), ("ntk_trace", "loss", "accuracy"), n_samples=20),
    )
    numbers = monitor.observe(network, 3)
    assert numbers == measure(network, monitor.samples, ["ntk_trace", "loss", "accuracy"]).values()
    assert monitor.readings[0]["ntk_trace"].units == "squared output / squared weight"
    table = monitor.to_pandas()
    assert (table.index.name, list(table.index), list(table.columns)) == (
        "epoch",
        [3],
        list(numbers),
    )


def test_the_log_determinant_is_that_of_the_small_kernel_unless_asked_otherwise() -> None:
    network, samples = make_network(), make_samples(12)
    small = Monitor(samples, ["ntk_logdet"]).observe(network, 1)
    full = Monitor(samples, ["ntk_logdet"], options={}).observe(network, 1)
    assert small["ntk_logdet"] == pytest.approx(
        float(ntk_logdet(network, samples.inputs, outputs="traced"))
    )
    assert (small["ntk_logdet.rank"], full["ntk_logdet.rank"]) == (12, 36)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_samples_are_fixed_by_the_seed_and_the_same_for_every_form_of_data(seed: int) -> None:
    samples = make_samples()
    dataset = TensorDataset(samples.inputs, samples.y)
    forms = [samples, (samples.inputs, samples.y), dataset, DataLoader(dataset, batch_size=7)]
    chosen = [Monitor(form, ["loss"], n_samples=20, seed=seed).samples for form in forms]
    for other in chosen:
        assert torch.equal(other.inputs, chosen[0].inputs)
    rows = (samples.inputs[:, None] == chosen[0].inputs).all(2).nonzero()[:, 0]
    assert len(rows) == 20
    assert rows.tolist() == sorted(rows.tolist()) != list(range(20))
    assert not torch.equal(
        Monitor(samples, ["loss"], n_samples=20, seed=seed + 5).samples.inputs, chosen[0].inputs
    )


class Augmented(Dataset):
    """Samples read one by one, with all three kinds of randomness."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.read.append(index)
        return torch.rand(6) + random.random() + float(np.random.rand()), index % 3


def test_of_a_dataset_only_the_chosen_samples_are_read_and_no_random_state_is_touched() -> None:
    dataset = Augmented()
    before = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
    monitor = Monitor(dataset, ["loss"], n_samples=20)
    assert len(dataset.read) == len(monitor.samples) == 20
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert str(np.random.get_state()) == before[2]
    Monitor(DataLoader(Augmented(), batch_size=100, shuffle=True), ["loss"], n_samples=20)
    assert torch.equal(torch.get_rng_state(), before[0])


def test_masks_depend_on_seed_and_epoch_alone() -> None:
    network = make_network(batch_norm=False)
    monitor = Monitor(make_samples(), ["ntk_trace"], n_samples=20, mode="train")
    first = monitor.observe(network, 1)
    torch.rand(5)
    assert monitor.observe(network, 1) == first != monitor.observe(network, 2)
    assert first != Monitor(make_samples(), ["ntk_trace"], n_samples=20).observe(network, 1)


def test_the_network_may_be_in_any_mode_and_stays_in_it() -> None:
    for monitor in (
        Monitor(make_samples(), n_samples=20),
        Monitor(make_samples(), ["loss"], mode="train"),
    ):
        network = make_network(batch_norm=False)
        network[2].eval()
        monitor.observe(network, 1)
        assert [module.training for module in network] == [True, True, False, True]


def test_a_first_recording_that_fails_is_reported() -> None:
    monitor = Monitor(make_samples(), ["ntk_trace"], n_samples=20, mode="train")
    with pytest.raises(ReplaceLayer, match="not mix the samples"):
        monitor.observe(make_network(), 1)
    with pytest.raises(InvalidInput, match="RuntimeError: mat1 and mat2"):
        Monitor(make_samples(), ["loss"]).observe(nn.Linear(5, 3), 1)


def test_later_failures_are_reported_once_and_leave_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = Monitor(make_samples(), ["ntk_trace", "loss"], n_samples=20)
    monitor.observe(make_network(), 1)
    with pytest.warns(UserWarning, match=r"recorded \(InvalidInput: .*Training continues"):
        broken = monitor.observe(nn.Linear(5, 3), 2)
    assert all(map(math.isnan, broken.values()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monitor.observe(nn.Linear(5, 3), 3)
    assert math.isfinite(monitor.observe(make_network(), 4)["loss"])
    assert (monitor.epochs, len(monitor.readings), len(monitor.readings[1])) == ([1, 2, 3, 4], 4, 0)
    for epoch, error, ends in ((5, MemoryError, False), (6, KeyboardInterrupt, True)):
        monkeypatch.setattr("gapscope.training.monitor.measure", mock.Mock(side_effect=error))
        with pytest.raises(error) if ends else contextlib.nullcontext():
            assert math.isnan(monitor.observe(make_network(), epoch)["loss"])


def test_what_can_be_measured_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    alarm = SharedLearning(neighbours=5)
    monitor = Monitor(make_samples(), ["ntk_trace", "loss"], n_samples=20, alarm=alarm)
    first = monitor.observe(make_network(), 1)
    broken = replace(get_measure("ntk_trace"), function=mock.Mock(side_effect=ZeroDivisionError))
    monkeypatch.setattr(
        "gapscope.measures.measurement.get_measure",
        lambda name: {"ntk_trace": broken}.get(name) or get_measure(name),
    )
    with pytest.warns(UserWarning, match="ntk_trace could not be") as caught:
        numbers = [monitor.observe(make_network(), epoch) for epoch in (2, 3)]
    assert len(caught) == 1
    for row in numbers:
        assert list(row) == list(first)
        assert [name for name, value in row.items() if math.isnan(value)] == ["ntk_trace"]
    monkeypatch.setattr(alarm, "observe", mock.Mock(side_effect=ZeroDivisionError))
    with pytest.warns(UserWarning, match="alarm could not be") as caught:
        row = monitor.observe(make_network(), 4)
    assert len(caught) == 1 and row["loss"] == first["loss"]
    assert math.isnan(row["alarm.raised"])


def test_warnings_that_are_errors_end_no_training(capsys: pytest.CaptureFixture[str]) -> None:
    monitor = Monitor(make_samples(), ["loss"], n_samples=20, sinks=[Tracker({1, 2, 3})])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monitor.observe(make_network(), 1)
        monitor.observe(nn.Linear(5, 3), 2)
    message = capsys.readouterr().err
    assert (
        "Tracker failed on the readings of epoch 1" in message
        and "Epoch 2: network could not be recorded" in message
    )


def test_a_sink_cannot_touch_random_states_or_the_gradient_mode() -> None:
    def meddle(epoch: int, numbers: Mapping[str, float]) -> None:
        torch.manual_seed(epoch)
        np.random.seed(epoch)
        random.seed(epoch)
        torch.rand(3)
        torch.set_grad_enabled(False)

    networks = [make_network(), make_network()]
    for network, sinks in zip(networks, ([], [meddle]), strict=True):
        train(
            network,
            make_samples(),
            TrainingSpec(epochs=3),
            on_epoch=Monitor(make_samples(), ["loss"], sinks=sinks),
        )
    assert torch.is_grad_enabled()
    for first, second in zip(networks[0].parameters(), networks[1].parameters(), strict=True):
        assert torch.equal(first, second)


class Tracker:
    """A sink that fails in the given calls."""

    def __init__(self, failing: set[int]) -> None:
        self.failing, self.calls, self.taken = failing, 0, []

    def __call__(self, epoch: int, numbers: Mapping[str, float]) -> None:
        self.calls += 1
        if self.calls in self.failing:
            raise ConnectionError("no route to host")
        self.taken.append((epoch, dict(numbers)))


def test_a_sink_that_fails_is_reported_once_and_tried_again() -> None:
    flaky, good = Tracker({1, 3}), Tracker(set())
    monitor, network = Monitor(make_samples(), ["loss"], sinks=[flaky, good]), make_network()
    message = r"^Tracker failed .* epoch 1 \(ConnectionError: no route to host\)"
    with pytest.warns(UserWarning, match=message) as caught:
        for epoch in range(1, 5):
            monitor.observe(network, epoch)
    assert [warning.filename for warning in caught] == [__file__]  # the line of the user
    assert [epoch for epoch, _ in flaky.taken] == [2, 4]
    assert [epoch for epoch, _ in good.taken] == [1, 2, 3, 4]
    assert good.taken[0][1] == monitor.rows[0]


def test_a_sink_that_never_works_is_abandoned() -> None:
    dead = Tracker(set(range(1, 100)))
    monitor, network = Monitor(make_samples(), ["loss"], sinks=[dead]), make_network()
    with pytest.warns(UserWarning, match=f"after {MAX_FAILURES} failures"):
        for epoch in range(1, 9):
            monitor.observe(network, epoch)
    assert dead.calls == MAX_FAILURES
    assert len(monitor.rows) == 8


def test_the_cost_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("gapscope.training.monitor.time", clock)
    monitor, network = Monitor(make_samples(), ["loss"]), make_network()
    assert math.isnan(monitor.cost.seconds_per_recording)
    monitor.observe(network, 1)
    assert math.isnan(monitor.cost.share)
    slow = Monitor(make_samples(), ["loss"], sinks=[lambda epoch, numbers: clock.sleep(0.06)])
    for epoch in range(1, 5):
        slow.observe(network, epoch)
        clock.sleep(0.02)
    cost = slow.cost
    assert (cost.recordings, cost.seconds) == (4, pytest.approx(4 * cost.seconds_per_recording))
    assert cost.seconds_per_recording == pytest.approx(0.06)
    assert cost.share == pytest.approx(0.18 / 0.24)
    assert re.fullmatch(
        r"4 recordings of 0\.\d+ s each, \d\d\.\d % of the time between them", str(cost)
    )
    assert re.fullmatch(r"Monitor\(loss on 60 samples: 4 recordings .*\)", repr(slow))


def test_a_monitor_that_is_used_again_restarts_with_a_note() -> None:
    monitor = Monitor(make_samples(), ["loss"], alarm=SharedLearning(neighbours=5))
    assert repr(monitor).endswith("SharedLearning(no verdict yet)")
    for epoch in (1, 2):
        monitor.observe(make_network(), epoch)  # type: ignore[arg-type]
    assert monitor.alarm is not None and "not raised; estimated best epoch so far" in repr(monitor)
    monitor.alarm.raised_at = 2
    with pytest.warns(UserWarning, match="Epoch 1 comes after"):
        monitor.observe(make_network(), 1)
    assert (
        monitor.epochs == [1]
        and len(monitor.rows) == 1
        and not monitor.alarm.raised
        and monitor.alarm.peak == 1
    )


def test_an_epoch_is_recorded_once() -> None:
    rows: list[int] = []
    monitor = Monitor(make_samples(), ["loss"], sinks=[lambda epoch, row: rows.append(epoch)])
    first = monitor.observe(make_network(), 1)
    with pytest.warns(UserWarning, match="1 is recorded already"):
        assert monitor.observe(make_network(), 1) == first
    assert monitor.epochs == [1] and len(monitor.rows) == len(monitor.readings) == 1 == len(rows)


def test_alarms_are_chosen_by_name_and_observe_the_untrained_network() -> None:
    samples = make_samples()
    monitor = Monitor(samples, [], n_samples=30, alarm="joint")
    trained(monitor)
    own = Monitor(samples, [], n_samples=30, alarm="joint")
    own.begin(make_network())
    assert isinstance(own.alarm, JointAlarm) and isinstance(monitor.alarm, JointAlarm)
    assert own.alarm.state_dict()["_predictions"] == monitor.alarm.state_dict()["_predictions"]


@pytest.mark.parametrize("alarm", ["shared_learning", "joint", "gradient_disparity"])
def test_a_resumed_training_resumes_its_monitor(tmp_path: Path, alarm: str) -> None:
    def watched() -> Monitor:
        small = {"gradient_disparity": {"batch_size": 4}, "shared_learning": {"neighbours": 5}}
        return Monitor(
            make_samples(), ["loss"], n_samples=20, alarm=make_alarm(alarm, **small.get(alarm, {}))
        )

    def run(epochs: int, monitor: Monitor, folder: Path | None) -> Any:
        settings = TrainingSpec(epochs=epochs, batch_size=16)
        return train(make_network(), make_samples(), settings, on_epoch=monitor, folder=folder)

    unbroken, resumed = watched(), watched()
    expected = run(6, unbroken, None).history
    run(3, watched(), tmp_path)
    result = run(6, resumed, tmp_path).history
    assert [row["train_loss"] for row in result] == [row["train_loss"] for row in expected]
    assert json.loads(to_json(resumed.state_dict()["alarm"])) == json.loads(
        to_json(unbroken.state_dict()["alarm"])
    )
    assert json.loads(to_json(resumed.rows)) == json.loads(to_json(unbroken.rows))
    assert resumed.epochs == unbroken.epochs
    assert [r.values() for r in resumed.readings] == [r.values() for r in unbroken.readings]


def test_a_state_without_its_alarm_raises() -> None:
    kept = Monitor(make_samples(), ["loss"]).state_dict()
    with pytest.raises(InvalidInput, match="this one has JointAlarm"):
        Monitor(make_samples(), ["loss"], alarm="joint").load_state_dict(kept)


def test_recordings_are_stored_and_plotted(tmp_path: Any) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    monitor = Monitor(make_samples(), ["loss", "accuracy"])
    for epoch in (1, 2):
        monitor.observe(make_network(), epoch)  # type: ignore[arg-type]
    monitor.save(tmp_path / "monitor.json")
    loaded = Monitor.load(tmp_path / "monitor.json")
    assert (
        loaded.to_pandas().equals(monitor.to_pandas())
        and loaded.to_json() == monitor.to_json()
        and loaded.epochs == [1, 2]
    )
    for drawn in (monitor, loaded):
        assert [axes.get_ylabel() for axes in drawn.plot()] == ["loss", "accuracy"]
    watched = Monitor(
        make_samples(), ["loss"], alarm=make_alarm("gradient_disparity", batch_size=4)
    )
    watched.observe(make_network(), 1)
    assert watched.alarm is not None
    watched.alarm.raised_at = 1
    axes = watched.plot()
    assert [each.get_ylabel() for each in axes] == ["loss", "alarm.disparity"]
    assert any(line.get_label() == "alarm raised" for line in axes[0].get_lines())
    plt.close("all")


@pytest.mark.parametrize(
    "content",
    [
        "[1]",
        '{"rows": 1}',
        '{"rows": [{"loss": 1}]}',
        '{"rows": [{"epoch": 1, "loss": null}]}',
        '{"rows": [{"epoch": 1, "loss": "x"}]}',
        '{"rows": [{"epoch": 1, "loss": [1]}]}',
        '{"rows": [{"epoch": "a", "loss": 1}]}',
        '{"rows": [{"epoch": 1.5, "loss": 1}]}',
    ],
)
def test_a_file_without_recordings_raises(content: str, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(content)
    with pytest.raises(UnreadableFile, match="must hold recordings"):
        Monitor.load(tmp_path / "other.json")


def test_epochs_of_numpy_are_saved(tmp_path: Path) -> None:
    monitor = Monitor(make_samples(), ["loss"], max_time_fraction=None)
    for epoch in np.arange(1, 3):
        monitor.observe(make_network(), epoch)  # type: ignore[arg-type]
    monitor.save(tmp_path / "recordings.json")
    assert Monitor.load(tmp_path / "recordings.json").epochs == [1, 2]
    assert json.loads(json.dumps(monitor.state_dict()))["epochs"] == [1, 2]
    Recordings(np.arange(2), [{}, {}]).save(tmp_path / "recordings.json")


def test_an_alarm_that_a_function_hides_is_named_once() -> None:
    samples = make_samples()
    monitor = Monitor(samples, [], n_samples=30, alarm="joint")

    def after_epoch(network: nn.Module, row: dict[str, Any]) -> None:
        monitor(network, row)

    with pytest.warns(UserWarning, match="on_epoch=monitor") as caught:
        trained(after_epoch)
    assert len(caught) == 1 and len(monitor.epochs) > 1


def test_wrong_use_in_an_own_loop_says_what_to_call() -> None:
    data = torch.randn(20, 3), torch.arange(20) % 2
    monitor, network = Monitor(data, ["loss"]), nn.Linear(3, 2)
    for row in (3, {}):
        with pytest.raises(InvalidInput, match=r"monitor\.observe\(network, epoch\)"):
            monitor(network, row)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="epoch must be at"):
        monitor.observe(network, -1)
    with pytest.raises(InvalidInput, match="sinks must be a"):
        Monitor(data, ["loss"], sinks="log.csv")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"gapscope\.Monitor of the training; got list"):
        check(network, data, monitor=[1, 2])


def test_a_state_of_another_monitor_raises_or_is_named() -> None:
    x, y = torch.randn(20, 3), torch.arange(20) % 2
    saved = Monitor((x, y), ["loss"])
    saved.observe(nn.Linear(3, 2), 1)
    state = saved.state_dict()
    with pytest.raises(InvalidInput, match="readings, alarm, but a"):
        Monitor((x, y), ["loss"]).load_state_dict({"a": 1})
    with pytest.raises(InvalidInput, match="one has loss, accuracy"):
        Monitor((x, y), ["loss", "accuracy"]).load_state_dict(state)
    for other in ((x[:10], y[:10]), (x + 1, y), (x, 1 - y)):
        with pytest.warns(UserWarning, match="its recordings are kept"):
            Monitor(other, ["loss"]).load_state_dict(state)
    same = Monitor((x, y), ["loss"])
    same.load_state_dict(json.loads(to_json(state)))
    assert same.epochs == [1]
    # as stored before measures and samples were part of it
    same.load_state_dict({name: state[name] for name in ("epochs", "rows", "readings", "alarm")})


def test_notes_of_the_network_are_printed() -> None:
    x, y = torch.randn(20, 3), torch.arange(20) % 2
    monitor = Monitor((x, y), ["loss"])
    network = nn.Sequential(nn.Linear(3, 2), nn.Sigmoid())
    for epoch in (1, 2):
        monitor.observe(network, epoch)
    (note,) = measure(network, (x, y), ["loss"]).notes
    assert repr(monitor).count(f"note: {note}") == 1


@pytest.mark.parametrize("codes", ["GS302", "GS302, GS203", "GS301"])
def test_one_text_names_checks(codes: str) -> None:
    assert Monitor(make_samples(), checks=codes).checks is not None
    listed = Monitor(make_samples(), checks=codes.split(", "))
    assert repr(Monitor(make_samples(), checks=codes)) == repr(listed)
    with pytest.raises(InvalidInput, match="checks of a monitor"):
        Monitor(make_samples(), checks="GS9")


def test_the_text_counts_loaded_recordings() -> None:
    samples = torch.randn(20, 4, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 3
    first, second = (Monitor(samples, ["accuracy"]) for _ in range(2))
    for epoch in range(3):
        first.observe(torch.nn.Linear(4, 3), epoch)
    second.load_state_dict(first.state_dict())
    second.observe(torch.nn.Linear(4, 3), 3)
    assert ": 4 recordings; since loading 1 recording of" in str(second)


def test_a_check_that_needs_labels_is_named_not_an_alarm_that_nobody_asked_for() -> None:
    data = torch.randn(20, 4), torch.rand(20, 3) > 0.5
    with pytest.raises(InvalidInput, match="GS301 needs class labels"):
        Monitor(data, checks=["GS301", "GS302"])
    assert Monitor(data, checks=["GS302"]).alarm is None
