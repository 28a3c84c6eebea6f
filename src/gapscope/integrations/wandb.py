"""Readings in Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gapscope.base.errors import InvalidInput, require_extra

require_extra("wandb", "wandb")

import wandb  # noqa: E402  # pyright: ignore[reportMissingImports]


class WandbSink:
    """Sink that logs numbers as `gapscope/<name>` over the axis `gapscope/epoch`.

    Args:
        run: A run; None for the current one at each recording.
    """

    def __init__(self, run: Any = None) -> None:
        self.run = run
        self._defined_for: Any = None

    def __call__(self, epoch: int, numbers: Mapping[str, float]) -> None:
        """Log the numbers of one recording.

        Raises:
            InvalidInput: There is no current run; a monitor turns this into a warning.
        """
        run = self.run or wandb.run  # pyright: ignore[reportAttributeAccessIssue]
        if run is None:
            raise InvalidInput(
                "WandbSink needs a run; there is no current one. Call wandb.init() before training."
            )
        if run is not self._defined_for:
            run.define_metric("gapscope/*", step_metric="gapscope/epoch")
            self._defined_for = run
        named = {"epoch": epoch, **numbers}
        run.log({f"gapscope/{name}": value for name, value in named.items()})
