"""A real Lightning fit, with and without the callback."""

# ruff: noqa: E402
from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pl = pytest.importorskip("lightning.pytorch")

from gapscope.base.errors import InvalidInput
from gapscope.integrations.lightning import MonitorCallback, PenaltyCallback
from gapscope.penalties.gradient_similarity import GradientSimilarityPenalty
from gapscope.training.alarms.joint import JointAlarm
from gapscope.training.monitor import Monitor

pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"
)


def make_data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(
        torch.randn(48, 6, generator=generator), torch.randint(0, 3, (48,), generator=generator)
    )


class Module(pl.LightningModule):
    """A network with batch normalization and dropout, as a LightningModule and as its part `net`."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: Any, _: int) -> None:
        self.log("validation_loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def fit(
    folder: Path,
    *callbacks: Any,
    epochs: int = 4,
    data: Any = None,
    resume: Path | None = None,
    make: Any = Module,
    **settings: Any,
) -> tuple[Any, Module]:
    torch.manual_seed(1)
    module = make()
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=list(callbacks),
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        log_every_n_steps=1,
        **({"logger": False} | settings),
    )
    loader = DataLoader(make_data() if data is None else data, batch_size=16, shuffle=True)
    trainer.fit(module, loader, DataLoader(make_data(), batch_size=16), ckpt_path=resume)
    return trainer, module


@pytest.mark.parametrize("part", [None, "net"])
def test_weights_are_bit_identical_with_and_without_the_callback(
    tmp_path: Path, part: str | None
) -> None:
    monitor = Monitor(DataLoader(make_data(), batch_size=16, shuffle=True), n_samples=20)
    _, plain = fit(tmp_path)
    _, monitored = fit(tmp_path, MonitorCallback(monitor, module=part))
    assert plain.state_dict().keys() == monitored.state_dict().keys()
    for name, tensor in plain.state_dict().items():
        assert torch.equal(tensor, monitored.state_dict()[name]), name
    assert monitor.epochs == [1, 2, 3, 4]
    assert all(row["ntk_trace"] > 0 for row in monitor.rows)
    assert monitored.training


def test_the_numbers_reach_the_trainer_and_its_logger(tmp_path: Path) -> None:
    from lightning.pytorch.loggers import CSVLogger  # pyright: ignore[reportMissingImports]

    monitor = Monitor(make_data(), n_samples=20, every=2)
    logger = CSVLogger(tmp_path)
    trainer, _ = fit(tmp_path, MonitorCallback(monitor), logger=logger)
    assert monitor.epochs == [2, 4]
    assert trainer.callback_metrics["ntk_trace"].item() == pytest.approx(
        monitor.rows[-1]["ntk_trace"], rel=1e-5
    )
    assert "ntk_trace" in (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()[0]


def test_the_module_can_be_monitored_inside_validation_with_its_inference_tensors(
    tmp_path: Path,
) -> None:
    monitor = Monitor(make_data(), n_samples=20)

    class Inside(pl.Callback):
        def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            assert torch.is_inference_mode_enabled()
            monitor.observe(pl_module, 1)

    trainer, module = fit(tmp_path, epochs=1)
    trainer = pl.Trainer(
        callbacks=[Inside()], accelerator="cpu", logger=False, enable_progress_bar=False
    )
    trainer.validate(module, DataLoader(make_data(), batch_size=16), verbose=False)
    assert monitor.rows[0]["ntk_trace"] > 0


@pytest.mark.parametrize(("stop", "epochs"), [(True, 2), (False, 4)])
def test_the_alarm_ends_training_only_where_asked(
    tmp_path: Path, raised_in: Any, stop: bool, epochs: int
) -> None:
    monitor = Monitor(make_data(), n_samples=24, alarm=raised_in(2))
    trainer, _ = fit(tmp_path, MonitorCallback(monitor, stop=stop))
    assert trainer.current_epoch == epochs


def test_a_resumed_fit_resumes_the_monitor_and_its_alarm(tmp_path: Path) -> None:
    def watched() -> Monitor:
        return Monitor(make_data(), ["accuracy"], n_samples=24, alarm="joint")

    unbroken, resumed = watched(), watched()
    fit(tmp_path, MonitorCallback(unbroken))
    trainer, _ = fit(tmp_path, MonitorCallback(watched()), epochs=2)
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    torch.manual_seed(5)
    again = pl.Trainer(
        max_epochs=4, accelerator="cpu", callbacks=[MonitorCallback(resumed)], default_root_dir=tmp_path, logger=False,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    loader = DataLoader(make_data(), batch_size=16)
    again.fit(Module(), loader, loader, ckpt_path=tmp_path / "half.ckpt")
    assert resumed.epochs == unbroken.epochs == [1, 2, 3, 4]
    assert resumed.rows[1] == unbroken.rows[1]
    assert isinstance(resumed.alarm, JointAlarm) and isinstance(unbroken.alarm, JointAlarm)
    assert resumed.alarm.state_dict()["_predictions"] == unbroken.alarm.state_dict()["_predictions"]


class Penalized(Module):
    """The module with a penalty in its training step."""

    def __init__(self, penalty: GradientSimilarityPenalty) -> None:
        super().__init__()
        self.penalty = penalty

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        outputs, value = self.penalty.forward_with_penalty(self.net, batch[0])
        return nn.functional.cross_entropy(outputs, batch[1]) + value


def test_a_resumed_fit_resumes_with_the_state_of_the_penalty(tmp_path: Path) -> None:
    def fitted(epochs: int, resume: Path | None = None) -> tuple[Any, GradientSimilarityPenalty]:
        penalty = GradientSimilarityPenalty(0.01, seed=4)
        callback = PenaltyCallback(penalty)
        return fit(
            tmp_path, callback, epochs=epochs, resume=resume, make=lambda: Penalized(penalty)
        )[0], penalty

    fitted(1)[0].save_checkpoint(tmp_path / "one.ckpt")
    unbroken, resumed = fitted(2)[1], fitted(2, tmp_path / "one.ckpt")[1]
    fresh = GradientSimilarityPenalty(0.01, seed=4).state_dict()
    for name, value in unbroken.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value)
    assert any(not torch.equal(fresh[name], value) for name, value in unbroken.state_dict().items())
    with pytest.raises(InvalidInput, match="checkpoint, 1; got 0"):
        PenaltyCallback().load_state_dict(PenaltyCallback(resumed).state_dict())


def test_a_penalty_that_the_training_step_does_not_compute_is_warned_of(tmp_path: Path) -> None:
    penalty = GradientSimilarityPenalty(0.01)
    with pytest.warns(UserWarning, match="GradientSimilarityPenalty: not computed") as caught:
        fit(tmp_path, PenaltyCallback(penalty), epochs=3)
    assert sum("not computed" in str(each.message) for each in caught) == 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(tmp_path, PenaltyCallback(penalty), epochs=2, make=lambda: Penalized(penalty))
    assert not any("not computed" in str(each.message) for each in caught)


def test_several_callbacks_of_one_trainer_have_states_of_their_own(tmp_path: Path) -> None:
    monitors = [Monitor(make_data(), [name], n_samples=24) for name in ("loss", "accuracy")]
    callbacks = [
        MonitorCallback(monitor, module="net", name=name)
        for monitor, name in zip(monitors, ("first", "second"), strict=True)
    ]
    penalties = [
        PenaltyCallback(GradientSimilarityPenalty(0.01), name=name) for name in ("", "second")
    ]
    trainer, _ = fit(tmp_path, *callbacks, *penalties, epochs=2)
    trainer.save_checkpoint(tmp_path / "state.ckpt")
    states = torch.load(tmp_path / "state.ckpt", weights_only=False)["callbacks"]
    assert {
        "MonitorCallback.first", "MonitorCallback.second", "PenaltyCallback", "PenaltyCallback.second",
    } <= set(states)  # fmt: skip
    again = [Monitor(make_data(), [name], n_samples=24) for name in ("loss", "accuracy")]
    callbacks = [
        MonitorCallback(monitor, module="net", name=name)
        for monitor, name in zip(again, ("first", "second"), strict=True)
    ]
    fit(tmp_path, *callbacks, epochs=3, resume=tmp_path / "state.ckpt")
    for before, after, name in zip(monitors, again, ("loss", "accuracy"), strict=True):
        assert after.epochs == [1, 2, 3] and set(after.rows[0]) == {name}
        assert after.rows[:2] == before.rows


def test_a_misspelled_module_gets_a_message(tmp_path: Path) -> None:
    callback = MonitorCallback(Monitor(make_data(), ["loss"], n_samples=24), module="nett")
    with pytest.raises(InvalidInput, match=r"got 'nett'\. Did .* 'net'"):
        fit(tmp_path, callback, epochs=1)


def test_what_is_no_monitor_or_penalty_raises_at_once() -> None:
    data = torch.randn(8, 3), torch.arange(8) % 2
    with pytest.raises(InvalidInput, match="monitor must be a"):
        MonitorCallback(data)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="penalties must be a"):
        PenaltyCallback(0.01)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="penalties must be a"):
        PenaltyCallback([GradientSimilarityPenalty(0.01)])  # type: ignore[arg-type]


def test_an_end_by_an_alarm_needs_one() -> None:
    data = torch.rand(8, 3), torch.arange(8) % 2
    with pytest.raises(InvalidInput, match="stop=True needs an alarm"):
        MonitorCallback(Monitor(data), stop=True)
    assert MonitorCallback(Monitor(data, alarm="joint"), stop=True).stop
