"""Metrics in a local MLflow store."""

# ruff: noqa: E402
from __future__ import annotations

from pathlib import Path

import pytest

mlflow = pytest.importorskip("mlflow")

from gapscope.integrations.mlflow import MLflowSink

pytestmark = [pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("named", [True, False])
def test_metrics_are_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(tmp_path.as_uri())
    with mlflow.start_run(experiment_id=mlflow.create_experiment(f"named {named}")) as run:
        sink = MLflowSink(run.info.run_id if named else None)
        sink(3, {"ntk_trace": 2.5, "ntk_logdet.rank": 7.0})
        sink(6, {"ntk_trace": 4.5, "ntk_logdet.rank": 8.0})
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "gapscope/ntk_trace")
    assert [(m.step, m.value) for m in history] == [(3, 2.5), (6, 4.5)]
    assert mlflow.get_run(run.info.run_id).data.metrics["gapscope/ntk_logdet.rank"] == 8
