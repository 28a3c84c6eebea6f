"""Readings in TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gapscope.base.errors import require_extra

require_extra("tensorboard", "tensorboard")

from torch.utils.tensorboard import SummaryWriter  # noqa: E402


class TensorBoardSink:
    """Sink that writes numbers as scalars `gapscope/<name>`, with the epoch as step.

    Args:
        target: A SummaryWriter, or the folder of a new one.
    """

    def __init__(self, target: SummaryWriter | str | Path) -> None:
        is_writer = isinstance(target, SummaryWriter)
        self.writer = target if is_writer else SummaryWriter(str(target))

    def __call__(self, epoch: int, numbers: Mapping[str, float]) -> None:
        """Write the numbers of one recording."""
        for name, value in numbers.items():
            self.writer.add_scalar(f"gapscope/{name}", value, epoch)
        self.writer.flush()
