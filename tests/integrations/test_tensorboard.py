"""Scalars that TensorBoard's own reader gives back."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

pytest.importorskip("tensorboard")

from gapscope.integrations.tensorboard import TensorBoardSink


@pytest.mark.parametrize("shared", [True, False])
def test_scalars_are_read_back(tmp_path: Path, shared: bool) -> None:
    from tensorboard.backend.event_processing.event_accumulator import (  # pyright: ignore[reportMissingImports]
        EventAccumulator,
    )
    from torch.utils.tensorboard import SummaryWriter

    sink = TensorBoardSink(SummaryWriter(str(tmp_path)) if shared else tmp_path)
    sink(3, {"ntk_trace": 2.5, "ntk_logdet": -math.inf})
    sink(6, {"ntk_trace": 4.5, "ntk_logdet": 1.0})
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("gapscope/ntk_trace")] == [(3, 2.5), (6, 4.5)]
    assert [e.value for e in events.Scalars("gapscope/ntk_logdet")] == [-math.inf, 1.0]
    sink.writer.close()
