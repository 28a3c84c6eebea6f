"""Numbers that the readers of TensorBoard, MLflow and Weights & Biases give back, and what a missing extra says."""

from __future__ import annotations

import importlib
import importlib.util
import math
import re
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest

from gapscope.base.errors import InvalidInput, MissingExtra

pytestmark = [pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("shared", [True, False])
def test_scalars_of_tensorboard(tmp_path: Path, shared: bool) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from torch.utils.tensorboard import SummaryWriter

    from gapscope.integrations.tensorboard import TensorBoardSink

    sink = TensorBoardSink(SummaryWriter(str(tmp_path)) if shared else tmp_path)
    sink(3, {"ntk_trace": 2.5, "ntk_logdet": -math.inf})
    sink(6, {"ntk_trace": 4.5, "ntk_logdet": 1.0})
    events = accumulator.EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("gapscope/ntk_trace")] == [(3, 2.5), (6, 4.5)]
    assert [e.value for e in events.Scalars("gapscope/ntk_logdet")] == [-math.inf, 1.0]
    sink.writer.close()


@pytest.mark.parametrize("named", [True, False])
def test_metrics_of_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    mlflow = pytest.importorskip("mlflow")
    from gapscope.integrations.mlflow import MLflowSink

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(tmp_path.as_uri())
    with mlflow.start_run(experiment_id=mlflow.create_experiment(f"named {named}")) as run:
        sink = MLflowSink(run.info.run_id if named else None)
        sink(3, {"ntk_trace": 2.5, "ntk_logdet.rank": 7.0})
        sink(6, {"ntk_trace": 4.5, "ntk_logdet.rank": 8.0})
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "gapscope/ntk_trace")
    assert [(m.step, m.value) for m in history] == [(3, 2.5), (6, 4.5)]
    assert mlflow.get_run(run.info.run_id).data.metrics["gapscope/ntk_logdet.rank"] == 8


def test_numbers_of_wandb_have_their_own_axis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    from gapscope.integrations.wandb import WandbSink

    with pytest.raises(InvalidInput, match=r"Call wandb\.init\(\)"):
        WandbSink()(1, {})
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = wandb.init(project="test", dir=str(tmp_path))
    try:
        sink = WandbSink()
        run.log({"loss": 1.0}, step=10)
        sink(3, {"ntk_trace": 2.5})
        WandbSink(run)(6, {"ntk_trace": 4.5})
        summary = dict(run.summary)
    finally:
        run.finish()
    assert (summary["gapscope/epoch"], summary["gapscope/ntk_trace"], summary["loss"]) == (
        6,
        4.5,
        1.0,
    )
    assert list(tmp_path.rglob("*.wandb"))


def test_each_run_of_wandb_gets_the_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    wandb: Any = ModuleType("wandb")
    wandb.__spec__ = ModuleSpec("wandb", None)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.delitem(sys.modules, "gapscope.integrations.wandb", raising=False)
    sink = importlib.import_module("gapscope.integrations.wandb").WandbSink()
    for _ in range(2):
        wandb.run = Mock()
        sink(1, {"loss": 1.0})
        sink(2, {"loss": 0.5})
        assert wandb.run.define_metric.call_count == 1
        assert wandb.run.log.call_count == 2
    monkeypatch.delitem(sys.modules, "gapscope.integrations.wandb")


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("lightning", "lightning"),
        ("transformers", "hf"),
        ("tensorboard", "tensorboard"),
        ("wandb", "wandb"),
        ("mlflow", "mlflow"),
    ],
)
def test_a_missing_extra_is_named_with_its_install_command(
    monkeypatch: pytest.MonkeyPatch, module: str, extra: str
) -> None:
    find_spec = importlib.util.find_spec

    def without(name: str, *rest: Any) -> Any:
        return None if name == module else find_spec(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    monkeypatch.delitem(sys.modules, f"gapscope.integrations.{module}", raising=False)
    command = re.escape(f"pip install 'gapscope[{extra}]'")
    with pytest.raises(MissingExtra, match=f"'{module}', which is not installed; run: {command}"):
        importlib.import_module(f"gapscope.integrations.{module}")
