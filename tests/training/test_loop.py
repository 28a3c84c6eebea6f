"""The training loop: optimizers against hand computation, resuming bit for bit, divergence as a value."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gapscope.base.errors import DamagedFileWarning, ReplaceLayer, UnreadableFile
from gapscope.base.files import read_json_lines, write_atomically
from gapscope.base.samples import Samples
from gapscope.base.specs import TrainingSpec
from gapscope.penalties.gradient_norms import InputJacobianPenalty
from gapscope.penalties.weight import L2Penalty
from gapscope.training import checkpoint_writer
from gapscope.training.checkpoints import load_tensors, save_tensors
from gapscope.training.loop import train
from gapscope.training.monitor import Monitor
from gapscope.training.run import learning_rate_at
from support.cases import CASES, each


def some_samples(n: int = 61, classes: int = 3) -> Samples:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, classes, (n,), generator=generator)
    x = torch.randn(n, 4, generator=generator) + 2 * torch.eye(classes, 4)[y]
    return Samples(x, y)


def some_network(*, noisy: bool = True) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        middle = [nn.BatchNorm1d(8), nn.Dropout(0.3)] if noisy else []
        return nn.Sequential(nn.Linear(4, 8), *middle, nn.ReLU(), nn.Linear(8, 3))


def state(network: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}


def equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


def _pairs(samples: Samples) -> TensorDataset:
    return TensorDataset(samples.inputs, samples.y)


def test_a_shuffling_loader_is_read_in_one_order_for_the_same_seed(tmp_path: Path) -> None:
    samples, settings = some_samples(), TrainingSpec(learning_rate=0.1, batch_size=16, epochs=4)
    loader = DataLoader(_pairs(samples), batch_size=7, shuffle=True)
    unbroken, resumed = some_network(), some_network()
    train(unbroken, loader, settings)
    torch.rand(3)
    train(resumed, loader, dataclasses.replace(settings, epochs=2), folder=tmp_path)
    torch.rand(5)
    train(resumed, loader, settings, folder=tmp_path)
    assert equal(state(resumed), state(unbroken))


@each()
def test_every_network_is_trained_in_parts_as_in_one_go(name: str, tmp_path: Path) -> None:
    (unbroken, samples), (resumed, _) = (CASES[name].make(12) for _ in range(2))
    settings = TrainingSpec(learning_rate=0.05, momentum=0.9, batch_size=4, epochs=3)
    start = state(unbroken)
    history = train(unbroken, samples, settings).history
    train(resumed, samples, dataclasses.replace(settings, epochs=1), folder=tmp_path)
    train(resumed, samples, settings, folder=tmp_path)
    assert equal(state(resumed), state(unbroken)) and len(history) == 3
    frozen = {key for key, parameter in unbroken.named_parameters() if not parameter.requires_grad}
    assert {
        key
        for key, _ in unbroken.named_parameters()
        if torch.equal(start[key], state(unbroken)[key])
    } == frozen


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_one_full_batch_sgd_epoch_is_the_step_by_hand(momentum: float) -> None:
    samples, network = some_samples(), some_network(noisy=False)
    start = copy.deepcopy(network)
    train(
        network,
        samples,
        TrainingSpec(learning_rate=0.1, momentum=momentum, batch_size=61, epochs=2),
    )
    velocity: list[torch.Tensor] = []
    for step in range(2):
        loss = nn.functional.cross_entropy(start(samples.inputs), samples.targets)  # type: ignore[arg-type]
        gradients = torch.autograd.grad(loss, list(start.parameters()))
        velocity = [
            g + (momentum * v if step else 0) for g, v in itertools.zip_longest(gradients, velocity)
        ]
        with torch.no_grad():
            for parameter, v in zip(start.parameters(), velocity, strict=True):
                parameter -= 0.1 * v
    for mine, theirs in zip(network.parameters(), start.parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-6)


def test_a_penalty_on_a_function_without_second_derivatives_names_it() -> None:
    class Distances(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.centres = nn.Parameter(torch.arange(12.0).reshape(3, 4))

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            return -torch.cdist(h, self.centres)

    x = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
    network = nn.Sequential(nn.Linear(4, 4), Distances())
    with pytest.raises(ReplaceLayer, match=r"none of cdist\."):
        train(
            network,
            (x, torch.arange(12) % 3),
            TrainingSpec(epochs=1),
            penalties=[InputJacobianPenalty(0.1)],
        )


def test_a_weight_penalty_is_twice_its_strength_of_weight_decay() -> None:
    samples = some_samples()
    settings = TrainingSpec(learning_rate=0.1, batch_size=20, epochs=3)
    mine, theirs = some_network(noisy=False), some_network(noisy=False)
    train(mine, samples, settings, penalties=[L2Penalty(0.05)])
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, weight_decay=0.1)
    from gapscope.base.randomness import derive_seed
    from gapscope.training.run import batches

    order = torch.Generator().manual_seed(derive_seed(0, "order of samples"))
    for _ in range(3):
        for batch in batches(61, 20, order):
            loss = nn.functional.cross_entropy(theirs(samples.inputs[batch]), samples.y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for first, second in zip(mine.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(first, second, atol=1e-6)


class _Killed(Exception):
    pass


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("killed_after", [1, 3])
def test_a_killed_run_resumes_and_ends_with_the_unbroken_weights(
    tmp_path: Path, optimizer: str, killed_after: int
) -> None:
    momentum = 0.9 if optimizer == "sgd" else 0.0
    settings = TrainingSpec(
        optimizer=optimizer,
        momentum=momentum,
        learning_rate=0.02,
        epochs=5,
        batch_size=16,
        schedule="cyclical",
    )
    unbroken = some_network()
    expected = train(unbroken, some_samples(), settings, seed=3, test=some_samples(20))

    def kill(network: nn.Module, row: dict[str, Any]) -> None:
        if row["epoch"] == killed_after + 1:
            raise _Killed

    with pytest.raises(_Killed):
        train(
            some_network(),
            some_samples(),
            settings,
            seed=3,
            test=some_samples(20),
            folder=tmp_path,
            on_epoch=kill,
        )
    resumed, epochs_run = some_network(), []
    result = train(
        resumed,
        some_samples(),
        settings,
        seed=3,
        test=some_samples(20),
        folder=tmp_path,
        on_epoch=lambda network, row: epochs_run.append(row["epoch"]),
    )
    assert epochs_run == list(range(killed_after + 1, 6))
    assert equal(state(resumed), state(unbroken))

    def without_time(rows: Any) -> list[dict[str, Any]]:
        return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]

    assert without_time(result.history) == without_time(expected.history)
    assert without_time(read_json_lines(tmp_path / "history.jsonl")) == without_time(
        expected.history
    )


def test_a_history_line_without_its_checkpoint_is_dropped(tmp_path: Path) -> None:
    settings = TrainingSpec(epochs=2)
    train(some_network(), some_samples(), settings, folder=tmp_path)
    with (tmp_path / "history.jsonl").open("a") as file:
        file.write('{"epoch": 3, "train_loss": 0.0}\n{"epoch": 4, "tra')
    result = train(some_network(), some_samples(), TrainingSpec(epochs=3), folder=tmp_path)
    assert [row["epoch"] for row in result.history] == [1, 2, 3]
    assert result.history[2]["train_loss"] > 0


def test_only_a_training_of_some_seconds_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    train(some_network(), some_samples(), TrainingSpec(epochs=1), folder=tmp_path)
    assert not synced
    monkeypatch.setattr(checkpoint_writer, "SYNC_AFTER", 0.0)
    monkeypatch.setattr(checkpoint_writer, "WRITE_INTERVAL", 0.0)
    train(some_network(), some_samples(), TrainingSpec(epochs=3), folder=tmp_path)
    assert len(synced) == 4, "history and checkpoint of two epochs"


def writes_of(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that the training writes from now on."""
    written: list[str] = []

    def noted(path: Path, content: str | bytes, *, durable: bool = True) -> None:
        written.append(path.name)
        write_atomically(path, content, durable=durable)

    monkeypatch.setattr(checkpoint_writer, "write_atomically", noted)
    return written


def test_short_epochs_are_written_once_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = writes_of(monkeypatch)
    now = [100.0]
    monkeypatch.setattr(checkpoint_writer.time, "monotonic", lambda: now[0])
    seen: list[int] = []

    def look(network: nn.Module, row: dict[str, Any]) -> None:
        seen.append(written.count("checkpoint.safetensors"))
        now[0] += 0.4

    train(some_network(), some_samples(), TrainingSpec(epochs=8), folder=tmp_path, on_epoch=look)
    assert seen == [0, 1, 1, 1, 2, 2, 2, 3], "the first, then every third"
    assert written == ["history.jsonl", "checkpoint.safetensors"] * 4, (
        "and the last, when training ends"
    )
    assert load_tensors(tmp_path / "checkpoint.safetensors")[1]["epoch"] == 8


def test_a_diverged_training_leaves_its_last_whole_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_writer.time, "monotonic", lambda: 100.0)
    network = some_network(noisy=False)

    def spoil(network: nn.Module, row: dict[str, Any]) -> None:
        if row["epoch"] == 3:
            with torch.no_grad():
                next(network.parameters()).fill_(float("nan"))

    result = train(network, some_samples(), TrainingSpec(epochs=6), folder=tmp_path, on_epoch=spoil)
    assert result.status == "diverged" and len(result.history) == 3
    assert load_tensors(tmp_path / "checkpoint.safetensors")[1]["epoch"] == 3


def test_a_loss_that_is_not_finite_ends_the_run_with_a_clear_result() -> None:
    network = some_network(noisy=False)
    result = train(
        network, some_samples(), TrainingSpec(learning_rate=1e30, epochs=5, batch_size=5)
    )
    assert result.status == "diverged"
    assert result.stop_reason.startswith("loss not finite in epoch")
    assert len(result.history) < 5


def test_training_stops_by_training_loss_in_a_number_of_epochs() -> None:
    result = train(
        some_network(noisy=False),
        some_samples(),
        TrainingSpec(epochs=50, stop_at_train_loss=0.8, stop_epochs=3),
    )
    reached = [row["train_loss"] <= 0.8 for row in result.history]
    assert sum(reached) == 3 and reached[-1] and "training loss" in result.stop_reason
    assert train(some_network(), some_samples(), TrainingSpec(epochs=0)).stop_reason == "0 epochs"


def test_the_gradient_is_clipped() -> None:
    settings = TrainingSpec(learning_rate=1.0, epochs=1, batch_size=61, gradient_clip=0.01)
    network = some_network(noisy=False)
    before = torch.cat([parameter.detach().flatten().clone() for parameter in network.parameters()])
    train(network, some_samples(), settings)
    after = torch.cat([parameter.detach().flatten() for parameter in network.parameters()])
    assert (after - before).norm().item() == pytest.approx(0.01, rel=1e-4)


def test_schedules() -> None:
    step = TrainingSpec(learning_rate=1.0, schedule="step", schedule_factor=0.5, schedule_epochs=2)
    assert [learning_rate_at(step, epochs) for epochs in (0, 1.9, 2, 4)] == [1, 1, 0.5, 0.25]
    exponential = TrainingSpec(learning_rate=1.0, schedule="exponential", schedule_factor=0.5)
    assert [learning_rate_at(exponential, epochs) for epochs in (0, 0.9, 1, 3)] == [
        1,
        1,
        0.5,
        0.125,
    ]
    cyclical = TrainingSpec(
        learning_rate=1.0, schedule="cyclical", schedule_factor=0.2, schedule_epochs=2
    )
    assert [learning_rate_at(cyclical, epochs) for epochs in (0, 1, 2, 3, 4)] == pytest.approx(
        [0.2, 0.6, 1, 0.6, 0.2]
    )
    constant = TrainingSpec(learning_rate=0.3)
    assert learning_rate_at(constant, 7.5) == 0.3


def test_regression_trains_on_the_mean_squared_error() -> None:
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    samples = Samples(x, x @ torch.tensor([[1.0], [2.0], [-1.0]]))
    network = nn.Linear(3, 1)
    result = train(network, samples, TrainingSpec(epochs=60, batch_size=10), test=samples)
    assert result.history[-1]["test_loss"] < 1e-6
    assert "train_accuracy" not in result.history[0]


def test_channels_last_trains_the_same_network_up_to_rounding() -> None:
    generator = torch.Generator().manual_seed(0)
    samples = Samples(
        torch.randn(20, 3, 8, 8, generator=generator),
        torch.randint(0, 2, (20,), generator=generator),
    )
    networks = []
    for channels_last in (False, True):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
        train(network, samples, TrainingSpec(epochs=2, batch_size=5, channels_last=channels_last))
        networks.append(network)
    for first, second in zip(networks[0].parameters(), networks[1].parameters(), strict=True):
        assert torch.allclose(first, second, atol=1e-5)


@pytest.mark.gpu
def test_mixed_precision_trains_on_cuda() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    network = some_network().cuda()
    result = train(
        network, some_samples(), TrainingSpec(precision="mixed", epochs=5), test=some_samples()
    )
    assert (
        result.status == "finished"
        and result.history[-1]["train_loss"] < result.history[0]["train_loss"]
    )


def test_a_checkpoint_of_another_network_raises(tmp_path: Path) -> None:
    train(some_network(), some_samples(), TrainingSpec(epochs=1), folder=tmp_path)
    with pytest.raises(UnreadableFile, match=r"network; '0.weight'"):
        other = nn.Sequential(
            nn.Linear(4, 9), nn.Linear(9, 3), nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        )
        train(other, some_samples(), TrainingSpec(epochs=2), folder=tmp_path)


OTHERS: dict[str, dict[str, Any]] = {
    "data": {"data": some_samples(79)},
    "seed 0": {"seed": 1},
    "learning_rate": {"settings": TrainingSpec(epochs=2, learning_rate=0.01)},
    "penalties": {"penalties": [L2Penalty(0.2)]},
    "test": {"test": some_samples(30)},
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_folder_of_another_training_raises(tmp_path: Path, other: str) -> None:
    call: dict[str, Any] = {
        "data": some_samples(),
        "settings": TrainingSpec(epochs=2),
        "test": some_samples(20),
        "penalties": [L2Penalty(0.1)],
    }
    train(some_network(), **call, folder=tmp_path)
    network = some_network()
    with pytest.raises(UnreadableFile, match=other):
        train(network, **call | OTHERS[other], folder=tmp_path)
    assert equal(state(network), state(some_network()))  # left as it was


class _Changing(TensorDataset):
    """Data set with a random stream of its own, so that each reading has other numbers."""

    stream = random.Random(0)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        x, y = super().__getitem__(index)
        return x * self.stream.uniform(0.9, 1.1), y


def test_data_that_change_when_they_are_read_are_resumed(tmp_path: Path) -> None:
    samples = some_samples()
    data = _Changing(samples.inputs, samples.y)
    train(some_network(), data, TrainingSpec(epochs=1), folder=tmp_path)
    result = train(some_network(), data, TrainingSpec(epochs=2), folder=tmp_path)
    assert len(result.history) == 2


def test_fewer_epochs_than_the_checkpoint_has_are_told(tmp_path: Path) -> None:
    train(some_network(), some_samples(), TrainingSpec(epochs=3), folder=tmp_path)
    with pytest.warns(UserWarning, match="training of 3 epochs"):
        result = train(some_network(), some_samples(), TrainingSpec(epochs=2), folder=tmp_path)
    assert result.stop_reason.startswith("3 epochs")


def test_a_checkpoint_that_does_not_say_of_what_is_taken_with_a_warning(tmp_path: Path) -> None:
    expected = some_network()
    train(expected, some_samples(), TrainingSpec(epochs=2))
    train(some_network(), some_samples(), TrainingSpec(epochs=1), folder=tmp_path)
    tensors, facts = load_tensors(tmp_path / "checkpoint.safetensors")
    del facts["identity"]
    save_tensors(tmp_path / "checkpoint.safetensors", tensors, facts)
    network = some_network()
    with pytest.warns(UserWarning, match="of an earlier version"):
        train(network, some_samples(), TrainingSpec(epochs=2), folder=tmp_path)
    assert equal(state(network), state(expected))


def test_a_resumed_monitor_keeps_the_order_of_its_columns(tmp_path: Path) -> None:
    def monitored(epochs: int) -> list[str]:
        monitor = Monitor(some_samples(), ["loss", "accuracy"])
        settings = TrainingSpec(epochs=epochs)
        train(some_network(), some_samples(), settings, folder=tmp_path, on_epoch=monitor)
        return list(monitor.rows[-1])

    assert monitored(1) == monitored(2)


def cut_off(folder: Path) -> None:
    path = folder / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:100])


def garble(folder: Path) -> None:
    path = folder / "checkpoint.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def without(name: str) -> Callable[[Path], None]:
    def take_out(folder: Path) -> None:
        tensors, facts = load_tensors(folder / "checkpoint.safetensors")
        save_tensors(
            folder / "checkpoint.safetensors",
            {k: v for k, v in tensors.items() if k != name},
            facts,
        )

    return take_out


def forget_the_epoch(folder: Path) -> None:
    save_tensors(
        folder / "checkpoint.safetensors", load_tensors(folder / "checkpoint.safetensors")[0]
    )


def lose_the_history(folder: Path) -> None:
    (folder / "history.jsonl").unlink()


def spoil_the_history(folder: Path) -> None:
    (folder / "history.jsonl").write_bytes(b"\xff\xfe\n\n\n")


DAMAGES = [
    cut_off, garble, without("random.order"), without("random.numpy"), forget_the_epoch, lose_the_history,
    spoil_the_history,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_training_whose_files_are_damaged_restarts(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    settings = TrainingSpec(epochs=3, batch_size=20, momentum=0.9)
    expected = some_network()
    train(expected, some_samples(), settings)
    train(
        some_network(),
        some_samples(),
        TrainingSpec(epochs=2, batch_size=20, momentum=0.9),
        folder=tmp_path,
    )
    damage(tmp_path)
    network = some_network()
    with pytest.warns(DamagedFileWarning, match="begins again"):
        result = train(network, some_samples(), settings, folder=tmp_path)
    assert [row["epoch"] for row in result.history] == [1, 2, 3]
    assert equal(state(network), state(expected))


class MovingAverage(nn.Module):
    """Forward uses a buffer that no state dictionary holds, and draws from NumPy and Python."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layer = nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * x.mean(0))
            x = (
                x * numpy.random.uniform(0.5, 1.5)
                + random.gauss(0, 0.1)
                + float(numpy.random.normal())
            )
        return self.layer(x - self.mean)


def test_what_no_state_dictionary_holds_is_stored_too(tmp_path: Path) -> None:
    settings = TrainingSpec(epochs=5, batch_size=10)

    def stop(network: nn.Module, row: dict[str, Any]) -> None:
        if row["epoch"] == 3:
            raise KeyboardInterrupt

    before = random.getstate(), numpy.random.get_state()[1].tolist()  # type: ignore[union-attr]
    unbroken, broken, resumed = MovingAverage(), MovingAverage(), MovingAverage()
    train(unbroken, some_samples(), settings)
    with pytest.raises(KeyboardInterrupt):
        train(broken, some_samples(), settings, folder=tmp_path, on_epoch=stop)
    train(resumed, some_samples(), settings, folder=tmp_path)
    assert equal(state(resumed), state(unbroken)) and torch.equal(resumed.mean, unbroken.mean)
    assert (random.getstate(), numpy.random.get_state()[1].tolist()) == before  # type: ignore[union-attr]


def test_weights_that_are_not_finite_after_the_last_step_are_a_divergence() -> None:
    result = train(
        some_network(noisy=False),
        some_samples(),
        TrainingSpec(epochs=1, batch_size=61, learning_rate=1e38),
    )
    assert result.status == "finished"  # large, but numbers
    samples = Samples(1e30 * some_samples().inputs, some_samples().targets)
    result = train(
        some_network(noisy=False),
        samples,
        TrainingSpec(epochs=1, batch_size=61, learning_rate=1e38),
    )
    assert result.status == "diverged" and result.stop_reason == "weights not finite after epoch 1"


def test_augmentation_changes_training_images_alone_and_is_reproducible() -> None:
    generator = torch.Generator().manual_seed(0)
    samples = Samples(torch.rand(20, 1, 6, 6, generator=generator), torch.arange(20) % 2)
    before, weights = samples.inputs.clone(), []
    for augmentation in ("none", "flip_shift_rotate", "flip_shift_rotate"):
        last = nn.Linear(36, 2)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        network = nn.Sequential(nn.Flatten(), last)
        train(network, samples, TrainingSpec(epochs=2, batch_size=10, augmentation=augmentation))
        weights.append(last.weight.detach())
    assert torch.equal(samples.inputs, before)
    assert torch.equal(weights[1], weights[2]) and not torch.allclose(weights[0], weights[1])


def test_on_batch_receives_every_sample_once_per_epoch_with_its_outputs() -> None:
    generator = torch.Generator().manual_seed(0)
    samples = Samples(
        torch.randn(37, 4, generator=generator), torch.randint(0, 3, (37,), generator=generator)
    )
    network, positions, outputs = nn.Linear(4, 3), list[torch.Tensor](), torch.zeros(37, 3)
    expected = network(samples.inputs).detach()

    def on_batch(batch: torch.Tensor, found: torch.Tensor) -> None:
        positions.append(batch)
        outputs[batch] = found

    train(
        network,
        samples,
        TrainingSpec(learning_rate=1e-12, batch_size=10, epochs=1),
        on_batch=on_batch,
    )
    assert torch.cat(positions).sort().values.tolist() == list(range(37))
    assert torch.allclose(outputs, expected)


def test_on_batch_receives_row_numbers_also_if_labels_are_missing() -> None:
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    y = torch.arange(40) % 3
    y[::5] = -100
    network, outputs = nn.Linear(4, 3), torch.full((40, 3), torch.nan)
    expected = network(x).detach()

    def on_batch(rows: torch.Tensor, found: torch.Tensor) -> None:
        outputs[rows] = found

    spec = TrainingSpec(learning_rate=1e-12, batch_size=8, epochs=1)
    train(network, (x, y), spec, on_batch=on_batch)
    assert torch.allclose(outputs[y >= 0], expected[y >= 0], atol=1e-6)
    assert bool(outputs[y < 0].isnan().all())


@pytest.mark.parametrize(
    ("n", "batch_size", "sizes"),
    [(5, 1, [1] * 5), (51, 10, [10] * 4 + [11]), (52, 10, [10] * 5 + [2]), (1, 10, [1])],
)
def test_the_schedule_counts_the_batches_of_an_epoch(
    n: int, batch_size: int, sizes: list[int]
) -> None:
    spec = TrainingSpec(
        epochs=1, batch_size=batch_size, learning_rate=0.05, schedule="cyclical",
        schedule_epochs=1, schedule_factor=0.5,
    )  # fmt: skip
    network, found, steps = nn.Linear(1, 1, bias=False), list[int](), list[float]()
    nn.init.zeros_(network.weight)

    def on_batch(rows: torch.Tensor, outputs: torch.Tensor) -> None:
        found.append(len(rows))
        steps.append(network.weight.item())

    x, y = torch.ones(n, 1), torch.full((n, 1), 2.0)
    train(network, Samples(x, y), spec, on_batch=on_batch)
    assert found == sizes
    # the gradient of (w - 2)^2 is 2 (w - 2): batch k of K multiplies 2 - w by 1 - 2 r, r = 0.025 (1 + k / K)
    rest = torch.tensor([1 - 0.05 * (1 + k / len(sizes)) for k in range(len(sizes))]).cumprod(0)
    assert [1 - step / 2 for step in steps] == pytest.approx(rest.tolist(), abs=1e-6)


class _MissingAbove(nn.Linear):
    """Linear network without numbers for samples whose first input is above 2."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return torch.where(input[:, :1] > 2, float("nan"), super().forward(input))


def test_test_scores_of_outputs_that_are_not_finite_are_missing() -> None:
    samples = some_samples()
    test = Samples(samples.inputs.index_fill(0, torch.tensor([3, 4]), 3.0), samples.y)
    keep = torch.nonzero(samples.inputs[:, 0] < 2).flatten()
    with pytest.warns(UserWarning, match=r"are NaN\. .* of 61 samples are NaN or infinite"):
        result = train(_MissingAbove(4, 3), samples.subset(keep), TrainingSpec(epochs=1), test=test)
    assert result.status == "finished"
    assert numpy.isnan([result.history[0]["test_accuracy"], result.history[0]["test_loss"]]).all()
