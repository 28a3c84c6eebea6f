"""Monitor and penalty for the Hugging Face Trainer, with or without adapters (PEFT).

trainer = Trainer(model, ..., callbacks=[MonitorCallback(gs.Monitor(train_dataset))])
add_penalty(trainer, gs.GradientSimilarityPenalty(0.001))
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from gapscope.base.arguments import check_arguments
from gapscope.base.batches import LABEL_NAMES
from gapscope.base.errors import InvalidInput, require_extra
from gapscope.base.files import read_json, to_json, write_atomically
from gapscope.base.input_layout import pack_inputs
from gapscope.inspection.network_adapter import NetworkAdapter
from gapscope.integrations.trainer_rules import accumulation_divisor, check_trainer
from gapscope.networks.adapters import LogitsOnly
from gapscope.penalties.base import Penalty
from gapscope.training.alarms.base import check_stop
from gapscope.training.checkpoints import load_tensors, save_tensors
from gapscope.training.monitor import Monitor

require_extra("transformers", "hf")
require_extra("accelerate", "hf")

from transformers import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)


def checkpoint_folder(args: TrainingArguments, state: TrainerState) -> Path:
    """Return the folder of the Trainer's checkpoint at its present step."""
    return Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"


_MONITOR_FILE = "gapscope_monitor.json"


class MonitorCallback(TrainerCallback):
    """Callback that records at the end of training epochs.

    Numbers are added to `trainer.state.log_history`; trackers receive them from the monitor's sinks. Weights are
    bit-identical with and without the callback (unless `stop`). With several processes the first one records. Each
    checkpoint of the Trainer holds the monitor's state (`gapscope_monitor.json`), so that resumed training continues.

    The monitor's data are those of the Trainer, a Dataset of mappings padded to one length, or `(input_ids, labels)`:
    then tokens equal to the config's `pad_token_id` are masked.

    Args:
        monitor: The monitor.
        stop: Whether its alarm, which it then needs, ends the training.

    Raises:
        InvalidInput: `stop` is set, and the monitor has no alarm.
    """

    @check_arguments
    def __init__(self, monitor: Monitor, *, stop: bool = False) -> None:
        check_stop(stop, monitor.alarm)
        self.monitor = monitor
        self.stop = stop

    def _monitored(self, model: nn.Module) -> nn.Module:
        if self.monitor.samples.form is not None:
            return model
        config = getattr(model, "config", None)  # plain modules have none
        return LogitsOnly(model, getattr(config, "pad_token_id", None))

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Observe the untrained network, or load the state from the checkpoint."""
        if not state.is_world_process_zero:
            return
        self.monitor.plan_epochs(round(state.num_train_epochs))
        file = checkpoint_folder(args, state) / _MONITOR_FILE
        if state.global_step and file.exists():
            self.monitor.load_state_dict(read_json(file))
            # a checkpoint that was written by the last step of an epoch is older than its row
            epoch = round(state.epoch or 0)
            is_at_end = abs((state.epoch or 0) - epoch) < 1e-6
            if is_at_end and epoch and epoch > max(self.monitor.epochs, default=0):
                self.on_epoch_end(args, state, control, **kwargs)
        else:
            self.monitor.begin(self._monitored(kwargs["model"]))

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Write the monitor's state into the checkpoint."""
        file = checkpoint_folder(args, state) / _MONITOR_FILE
        if state.is_world_process_zero and file.parent.exists():
            write_atomically(file, to_json(self.monitor.state_dict()))

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Record if due."""
        if not state.is_world_process_zero:
            return
        # `max_steps` may end the training within an epoch
        row: dict[str, Any] = {"epoch": math.ceil((state.epoch or 0) - 1e-6)}
        self.monitor(self._monitored(kwargs["model"]), row)
        if len(row) > 1:
            state.log_history.append({**row, "step": state.global_step})
        if self.stop and self.monitor.alarm is not None and self.monitor.alarm.raised:
            control.should_training_stop = True


class _PenaltyState(TrainerCallback):
    """Callback that stores a penalty's state with the Trainer's checkpoints."""

    def __init__(self, penalty: Penalty, number: int) -> None:
        self.penalty = penalty
        self.number = number

    def _file(self, args: TrainingArguments, state: TrainerState) -> Path:
        # each process has other samples, and therefore another state
        name = f"gapscope_penalty_{self.number}_{args.process_index}.safetensors"
        return checkpoint_folder(args, state) / name

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        file = self._file(args, state)
        if state.global_step and file.exists():
            self.penalty.load_state_dict(load_tensors(file)[0])

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        file = self._file(args, state)
        if file.parent.exists():
            save_tensors(file, self.penalty.state_dict())


def add_penalty(trainer: Any, penalty: Penalty) -> None:
    """Add a penalty to the loss of a Trainer's training steps, and to the `loss` that it logs.

    The penalty is that of the model's logits by its trainable weights (with an adapter those of the adapter), from one
    extra forward pass per step with other dropout masks. Penalties of several calls are summed, and those of several
    processes are averaged. Each checkpoint of the Trainer holds the penalty's state, one file per process, from which
    resumed training continues.

    Raises:
        InvalidInput: The arguments are not a Trainer and a penalty.
    """
    check_trainer(trainer, "add_penalty")
    if not isinstance(penalty, Penalty):
        raise InvalidInput(
            f"add_penalty needs a penalty, such as GradientSimilarityPenalty(0.001); got {penalty!r}."
        )
    compute_loss = trainer.compute_loss

    def compute_with_penalty(
        model: nn.Module, inputs: Mapping[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        batch = dict(inputs)  # the loss of the Trainer may remove the labels
        result = compute_loss(model, inputs, *args, **kwargs)
        if not model.training:
            return result
        tensors = {
            name: value
            for name, value in batch.items()
            if isinstance(value, Tensor) and value.ndim > 0
        }
        targets = [tensors.pop(name) for name in LABEL_NAMES if name in tensors]
        x, form = pack_inputs(tensors)
        x = x.to(next(iter(tensors.values())).device)
        network = NetworkAdapter(trainer.accelerator.unwrap_model(model), form)
        value = penalty(network, x, targets[0] if targets else None) / accumulation_divisor(
            trainer, kwargs
        )
        if isinstance(result, tuple):
            return (result[0] + value, *result[1:])
        return result + value

    trainer.compute_loss = compute_with_penalty
    number = sum(isinstance(item, _PenaltyState) for item in trainer.callback_handler.callbacks)
    trainer.add_callback(_PenaltyState(penalty, number))
