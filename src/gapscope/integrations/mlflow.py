"""Readings in MLflow."""

from __future__ import annotations

from collections.abc import Mapping

from gapscope.base.errors import require_extra

require_extra("mlflow", "mlflow")

import mlflow  # noqa: E402  # pyright: ignore[reportMissingImports]


class MLflowSink:
    """Sink that logs numbers as metrics `gapscope/<name>`, with the epoch as step.

    An unreachable server blocks each call for MLflow's timeout (`MLFLOW_HTTP_REQUEST_TIMEOUT` and
    `MLFLOW_HTTP_REQUEST_MAX_RETRIES`); after three such calls in a row a monitor no longer calls the sink.

    Args:
        run_id: A run; None for the active one.
    """

    def __init__(self, run_id: str | None = None) -> None:
        self.run_id = run_id

    def __call__(self, epoch: int, numbers: Mapping[str, float]) -> None:
        """Log the numbers of one recording."""
        metrics = {f"gapscope/{name}": value for name, value in numbers.items()}
        mlflow.log_metrics(metrics, step=epoch, run_id=self.run_id)  # pyright: ignore[reportAttributeAccessIssue]
