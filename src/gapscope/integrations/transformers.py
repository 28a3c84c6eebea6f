"""A monitor in a Hugging Face Trainer: `Trainer(..., callbacks=[MonitorCallback(monitor)])`."""

from __future__ import annotations

from typing import Any

from torch import nn

from gapscope.base.errors import require_extra
from gapscope.networks.adapters import LogitsOnly
from gapscope.training.monitor import Monitor

require_extra("transformers", "hf")
require_extra("accelerate", "hf")

from transformers import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)


class MonitorCallback(TrainerCallback):
    """Records at the end of training epochs.

    The numbers are kept by the monitor and added to `trainer.state.log_history`; trackers get them from the monitor's
    sinks, for the Trainer does not hand them on. Weights are bit-identical with and without the callback (unless
    `stop`). With several processes the first one records.

    The monitored network is the model's logits. A monitor needs tensors, not a dataset of dictionaries:
    `Monitor((input_ids, labels))`, or `Monitor((pixel_values, labels))`; token numbers equal to the config's
    `pad_token_id` are left out by the attention mask.

    Args:
        monitor: What to record, and how often (`every` counts training epochs).
        stop: Whether the monitor's alarm ends the training.
    """

    def __init__(self, monitor: Monitor, *, stop: bool = False) -> None:
        self.monitor, self.stop = monitor, stop

    def on_epoch_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **kwargs: Any,
    ) -> None:
        """Record if it is time.

        Args:
            args: Settings of the trainer.
            state: Where training stands.
            control: Through which training is ended.
            model: The model, without wrappers.
            **kwargs: What else the trainer passes.
        """
        if not state.is_world_process_zero:
            return
        assert model is not None
        row: dict[str, Any] = {"epoch": round(state.epoch or 0)}
        self.monitor(LogitsOnly(model, getattr(model.config, "pad_token_id", None)), row)
        if len(row) > 1:
            state.log_history.append({**row, "step": state.global_step})
        if self.stop and self.monitor.alarm is not None and self.monitor.alarm.raised:
            control.should_training_stop = True
