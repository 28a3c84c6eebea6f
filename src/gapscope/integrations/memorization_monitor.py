"""Memorization monitor for Hugging Face fine-tuning, with or without adapters.

canaries = PairedCanaries.of_tokens(train_dataset)
trainer = Trainer(model, ..., train_dataset=canaries.dataset)
monitor = add_memorization_monitor(trainer, canaries)
trainer.train()
monitor.flagged_at, monitor.rows
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gapscope.base.arguments import check_arguments
from gapscope.base.errors import (
    InvalidInput,
    NotMeasurable,
    check_range,
    first_line,
    require_extra,
)
from gapscope.base.random_streams import make_generator
from gapscope.base.type_guards import has_length
from gapscope.base.user_data import read_sample
from gapscope.inspection.network_checks import unwrapped
from gapscope.inspection.next_position import UNDECIDED, own_loss, predicts_next
from gapscope.inspection.outputs import raw_outputs
from gapscope.inspection.restoring import preserve_rng_state
from gapscope.integrations.sample_losses import log_probability_of_sampled, sequence_losses
from gapscope.integrations.trainer_rules import MeanLoss, check_trainer, collate_as_in_training
from gapscope.integrations.transformers import checkpoint_folder
from gapscope.labels.canary_data import label_name
from gapscope.labels.monitored import PairedCanaries, paired_p_value
from gapscope.results.formatting import pluralize
from gapscope.training.checkpoints import load_tensors, save_tensors
from gapscope.training.network_trace import FollowedNetwork
from gapscope.training.recordings import warn_or_print

require_extra("transformers", "hf")
require_extra("accelerate", "hf")

from transformers import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)


def _split(batch: Mapping[str, Any], device: torch.device) -> tuple[dict[str, Tensor], str]:
    """Return the tensors of a batch on a device, and the name of its labels."""
    tensors = {name: value.to(device) for name, value in batch.items() if isinstance(value, Tensor)}
    return tensors, label_name(tensors)


class MemorizationMonitor(TrainerCallback):
    r"""Monitor of memorization: gap to first visits, canary test, gradient norms.

    Each row (in `rows`, and in `trainer.state.log_history`) holds

    - `training_loss`: mean loss of the epoch's batches, as the Trainer computes it, for any number of accumulated
      batches.
    - `first_visit_loss`: mean loss of the steps in the second half of the first epoch. Its samples were new, so that
      this is a validation loss of the network half an epoch earlier, on average.
    - `first_visit_gap`: first_visit_loss - training_loss, from the second epoch on: an upper bound on memorization, for
      it includes later learning that applies to all samples.
    - `canary_gap`: mean loss of the canaries that were not trained on less that of those that were, and its
      `canary_p_value` (`gapscope.labels.monitored.paired_p_value`).
    - `trained_fisher_trace`: mean over some samples of $|\nabla_\theta \log p(y|x)|^2$ by the trained weights (with
      LoRA those of the adapter), for labels y sampled from the prediction. Omitted for sharded weights (FSDP), for
      data without a length, and for regression, which predicts no probabilities.

    `flagged_at` is the first epoch at which the p-value is at most `level` divided by the number of epochs, so that a
    network that has learned nothing from the canaries is flagged with probability `level` at most. It says that
    memorization has begun, not that training should end: the accuracy on new data often rises for epochs after it. So
    few pairs that no p-value is small enough cause a warning.

    A second call of `train()` continues: its epochs are counted from those before, and `first_visit_loss` stays that of
    the first run. All tests of a monitor share `level`: what the first run has spent is not there for the second, whose
    p-values then set no flag (a warning). Another network in the second call (`model_init`) is warned of. A monitor
    that is added after training has no loss of first visits.

    Weights are those without the monitor, and an error of the monitor does not end training: it causes one warning, and
    `unmeasured` holds the reason. Each checkpoint of the Trainer holds the monitor's state, from which resumed training
    continues. Labels of language models are compared with the outputs as in the model's own loss. With several
    processes each evaluates every canary; losses of steps are means over processes.

    Args:
        trainer: The Trainer whose training is monitored.
        canaries: Pairs; None omits the test.
        level: Probability of a false flag.
        trace_samples: Number of samples of the Fisher trace; 0 omits it.
        stop: Whether to end training at the flag; this costs accuracy where memorization begins before learning ends.
        seed: Seed of the labels that are sampled for the Fisher trace.

    Raises:
        InvalidInput: `trainer` is not a Trainer or does not train on the canaries, a number is outside of its range, or
            `stop` is set without canaries.

    Attributes:
        rows: One mapping per recording.
        flagged_at: Epoch of the flag, or None.
        unmeasured: Part of a row -> why it is missing.
        notes: What could not be decided about the labels.
    """

    def __init__(
        self,
        trainer: Any,
        canaries: PairedCanaries | None = None,
        *,
        level: float = 0.01,
        trace_samples: int = 2,
        stop: bool = False,
        seed: int = 0,
    ) -> None:
        check_trainer(trainer, "MemorizationMonitor")
        if canaries is not None and trainer.train_dataset is not canaries.dataset:
            raise InvalidInput(
                "Got a Trainer with data other than canaries.dataset. Pass train_dataset=canaries.dataset."
            )
        check_range("level", level, 0, 1, low_open=True)
        check_range("trace_samples", trace_samples, 0)
        if stop and canaries is None:
            raise InvalidInput(
                "stop=True needs canaries, whose test sets the flag that ends the training; got none. Pass "
                "PairedCanaries, or stop=False."
            )
        self.trainer = trainer
        self.canaries = canaries
        self.level = level
        self.stop = stop
        self.trace_samples = trace_samples
        self.random = make_generator(seed, "drawn labels")
        self.rows: list[dict[str, float]] = []
        self.flagged_at: float | None = None
        self.unmeasured: dict[str, str] = {}
        self.notes: list[str] = []
        self._followed = FollowedNetwork()
        # several monitors of one Trainer have their own files
        self._number = 0
        self._is_shifted: bool | None = None
        # losses of the epoch's steps, on the device, without synchronization
        self._losses: list[Tensor] = []
        self._first_visit_loss: float | None = None
        self._seconds = 0.0
        self._started_at = math.nan
        self._saved_epoch = math.nan
        # epochs of earlier calls of train(), and whether steps before this call have seen the data
        self._n_before = 0
        self._has_seen_data = trainer.state.global_step > 0
        self._has_stepped = self._has_seen_data
        # of `level`: the part that tests so far have spent, and that of each test to come
        self._spent = 0.0
        self._test_level = level

    def __repr__(self) -> str:
        text = "not flagged"
        if self.flagged_at is not None:
            text = f"memorization has begun at epoch {self.flagged_at:g}, accuracy on new data may still rise"
        text += f"; level {self.level:g}; {pluralize(len(self.rows), 'observation')}"
        p_values = [row["canary_p_value"] for row in self.rows if "canary_p_value" in row]
        if p_values:
            text += f", last p-value {p_values[-1]:.2g}"
        if self.canaries is not None:
            text += f"; {self.canaries!r}"
        for part, reason in self.unmeasured.items():
            text += f"; no {part}: {reason}"
        return f"MemorizationMonitor({text})"

    @property
    def overhead_fraction(self) -> float:
        """Fraction of the CPU time since training began that the monitor took."""
        return self._seconds / (time.process_time() - self._started_at)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Start the clock, count the epochs to come, and load the state of the checkpoint.

        Args:
            args: Arguments of the Trainer.
            state: State of the Trainer.
            control: Flags of the Trainer.
            _: Further objects of the Trainer; they are not used.
        """
        self._started_at = time.process_time()
        self._seconds = 0.0
        if state.global_step:
            self._has_seen_data = False
            self._attempt("state of the checkpoint", lambda: self._load(args, state))
        elif self._has_stepped:
            self._continue()
        self._share_level(max(1, round(state.num_train_epochs)), state)
        # a checkpoint that was written by the last step of an epoch is older than its row
        is_row_missing = bool(self._losses) and abs(self._saved_epoch % 1) < 1e-6
        if state.global_step and is_row_missing:
            self._record(round(self._saved_epoch), state)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Note that the network was trained.

        Args:
            args: Arguments of the Trainer.
            state: State of the Trainer.
            control: Flags of the Trainer.
            _: Further objects of the Trainer; they are not used.
        """
        self._has_stepped = True

    def _continue(self) -> None:
        """Count epochs from those of the last call of train()."""
        self._has_seen_data = True
        self._losses = []
        if self.rows:
            self._n_before = int(self.rows[-1]["epoch"])

    def _share_level(self, n_epochs: int, state: TrainerState) -> None:
        """Share what is left of the level among the tests to come, and warn if no test can flag."""
        n_tests = max(1, n_epochs - sum(row["epoch"] > self._n_before for row in self.rows))
        self._test_level = max(0.0, self.level - self._spent) / n_tests
        if self.canaries is None or self.flagged_at is not None:
            return
        if self._test_level < 1e-9 * self.level:
            self._test_level = 0.0
            warn_or_print(
                f"The tests of the {self._n_before} epochs before have spent the level {self.level:g}: p-values of "
                "this train() set no flag. Train all epochs in one call, or add a monitor for this one."
            )
        elif self.canaries.smallest_p_value > self._test_level:
            warn_or_print(
                f"{len(self.canaries)} pairs of canaries cannot show memorization at the level {self.level:g} in "
                f"{n_epochs} epochs. Pass number= for more pairs, or a larger level."
            )

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Write the monitor's state into the checkpoint.

        Args:
            args: Arguments of the Trainer.
            state: State of the Trainer.
            control: Flags of the Trainer.
            _: Further objects of the Trainer; they are not used.
        """
        file = self._file(args, state)
        if file.parent.exists():
            self._attempt("file in the checkpoint", lambda: self._save(file, state))

    def _file(self, args: TrainingArguments, state: TrainerState) -> Path:
        # each process has the losses of its own batches
        name = f"gapscope_memorization_{self._number}_{args.process_index}.safetensors"
        return checkpoint_folder(args, state) / name

    def _save(self, file: Path, state: TrainerState) -> None:
        losses = torch.tensor([float(loss) for loss in self._losses], dtype=torch.float64)
        tensors = {"random": self.random.get_state(), "losses": losses}
        facts = {
            "epoch": state.epoch,
            "rows": self.rows,
            "flagged_at": self.flagged_at,
            "first_visit_loss": self._first_visit_loss,
            "n_before": self._n_before,
            "has_seen_data": self._has_seen_data,
            "spent": self._spent,
            "network": self._followed.state_dict(),
        }
        save_tensors(file, tensors, facts)

    def _load(self, args: TrainingArguments, state: TrainerState) -> None:
        file = self._file(args, state)
        if not file.exists():
            raise InvalidInput(
                f"training was resumed from a checkpoint without {file.name}: rows of earlier epochs and the loss of "
                "first visits are missing"
            )
        tensors, facts = load_tensors(file)
        self.random.set_state(tensors["random"])
        self._losses = [*tensors["losses"]]
        self._saved_epoch = facts["epoch"]
        self.rows = facts["rows"]
        self.flagged_at = facts["flagged_at"]
        self._first_visit_loss = facts["first_visit_loss"]
        self._n_before = facts.get("n_before", 0)
        self._followed = FollowedNetwork.from_state(facts.get("network", {}))
        self._has_seen_data = facts.get("has_seen_data", False)
        spent = len(self.rows) * self.level / max(1, round(state.num_train_epochs))
        self._spent = facts.get("spent", spent)

    def _attempt(
        self, part: str, compute: Callable[[], dict[str, float] | None]
    ) -> dict[str, float]:
        """Return the numbers of one part of a row; after an error none, and its reason is stored."""
        try:
            return compute() or {}
        except NotMeasurable as error:
            self.unmeasured[part] = str(error)
        except Exception as error:  # nothing in the monitor may end the training
            if part not in self.unmeasured:
                warn_or_print(
                    f"MemorizationMonitor has no {part} ({type(error).__name__}: {first_line(error)}). Training "
                    "continues; this warning appears once."
                )
            self.unmeasured[part] = f"{type(error).__name__}: {first_line(error)}"
        return {}

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Record the epoch.

        Args:
            args: Arguments of the Trainer.
            state: State of the Trainer.
            control: Flags of the Trainer, of which `stop` sets `should_training_stop`.
            _: Further objects of the Trainer; they are not used.
        """
        self._record(round(state.epoch or 0), state)
        if self.stop and self.flagged_at is not None and self.flagged_at > self._n_before:
            control.should_training_stop = True

    def _record(self, epoch: int, state: TrainerState) -> None:
        start = time.process_time()
        row: dict[str, float] = {"epoch": self._n_before + epoch}
        row |= self._attempt("comparison of networks", lambda: self._compare_network(epoch))
        row |= self._attempt("training_loss", lambda: self._mean_losses(epoch))
        modes = [(module, module.training) for module in self.trainer.model_wrapped.modules()]
        try:
            with preserve_rng_state():
                row |= self._attempt("canary_p_value", lambda: self._test_canaries(epoch))
                row |= self._attempt("trained_fisher_trace", self._fisher_trace)
        finally:
            for module, training in modes:
                module.training = training
        self.rows.append(row)
        state.log_history.append({**row, "epoch": epoch, "step": state.global_step})
        self._seconds += time.process_time() - start

    def _compare_network(self, epoch: int) -> None:
        # each process has a part of sharded weights alone
        if not self.trainer.is_fsdp_enabled:
            self._followed.compare(self.trainer.model, self._n_before + epoch)

    def _mean_losses(self, epoch: int) -> dict[str, float]:
        losses = torch.stack(self._losses or [torch.tensor(math.nan)]).double()
        means = torch.stack([losses.mean(), losses[len(losses) // 2 :].mean()])
        if (accelerator := self.trainer.accelerator).num_processes > 1:
            means = accelerator.reduce(means.to(accelerator.device), "mean")
        loss, second_half = means.tolist()
        self._losses = []
        if epoch <= 1 and not self._has_seen_data:
            self._first_visit_loss = second_half
        row = {"training_loss": loss}
        if self._first_visit_loss is None:
            self.unmeasured["first_visit_loss"] = "the first visits of samples were not monitored"
            return row
        row["first_visit_loss"] = self._first_visit_loss
        if epoch > 1 or self._has_seen_data:
            row["first_visit_gap"] = self._first_visit_loss - loss
        return row

    def _batches(self, samples: Sequence[Any]) -> list[tuple[dict[str, Tensor], Tensor]]:
        size = self.trainer.args.per_device_eval_batch_size
        device = self.trainer.accelerator.device
        batches = []
        for start in range(0, len(samples), size):
            part = collate_as_in_training(self.trainer, samples[start : start + size])
            x, name = _split(part, device)
            y = x.pop(name)
            if self._is_shifted is None:
                self._is_shifted = self._decide_shift(x, y, name)
            batches.append((x, y))
        return batches

    @torch.no_grad()
    def _decide_shift(self, x: Mapping[str, Tensor], y: Tensor, name: str) -> bool | None:
        """Return whether labels are about the next position (`gapscope.inspection.next_position`)."""
        if y.ndim < 2 or y.is_floating_point():
            return False
        model = self.trainer.model_wrapped.eval()
        few = {key: value[:2] for key, value in x.items()}
        try:
            loss = own_loss(model(**few, **{name: y[:2]}))
        except Exception:  # what models raise on labels that they do not take
            loss = None
        outputs = raw_outputs(model(**few))
        inner = unwrapped(self.trainer.model)
        predicted = predicts_next(inner, outputs, y[:2], ids=few.get("input_ids"), loss=loss)
        if predicted is None and UNDECIDED not in self.notes:
            self.notes.append(UNDECIDED)
            warn_or_print(UNDECIDED)
        return predicted

    @property
    def _form(self) -> dict[str, Any]:
        """Settings of `sequence_losses` for the Trainer's model."""
        config = getattr(self.trainer.model, "config", None)
        return {
            "causal": bool(self._is_shifted),
            "problem_type": getattr(config, "problem_type", None),
        }

    @torch.no_grad()
    def _losses_of(self, samples: Sequence[Any]) -> Tensor:
        # the wrapped model, because sharded weights need a call by all processes
        model = self.trainer.model_wrapped.eval()
        parts = self._batches(samples)
        return torch.cat(
            [sequence_losses(raw_outputs(model(**x)), y, **self._form) for x, y in parts]
        )

    def _test_canaries(self, epoch: int) -> dict[str, float]:
        if self.canaries is None:
            return {}
        losses = self._losses_of([*self.canaries.trained, *self.canaries.others]).cpu()
        trained, others = losses.double().chunk(2)
        differences = (others - trained).tolist()
        p_value = paired_p_value(differences)
        self._spent += self._test_level
        if self.flagged_at is None and self._test_level > 0 and p_value <= self._test_level:
            self.flagged_at = self._n_before + epoch
        return {"canary_gap": sum(differences) / len(differences), "canary_p_value": p_value}

    def _fisher_trace(self) -> dict[str, float]:
        trainer = self.trainer
        if not self.trace_samples:
            return {}
        if trainer.is_fsdp_enabled:
            raise NotMeasurable("needs whole weights; those of FSDP are sharded")
        data = trainer.train_dataset
        if not has_length(data):
            raise NotMeasurable(
                f"needs training data with a length; got a stream, {type(data).__name__}"
            )
        model = trainer.model.eval()
        weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
        order = torch.randperm(len(data), generator=self.random)
        squares = []
        for index in order[: self.trace_samples].tolist():
            (x, y), *_ = self._batches([read_sample(data, index)])
            with torch.enable_grad():
                outputs = raw_outputs(model(**x))
                value = log_probability_of_sampled(outputs, y, self.random, **self._form)
                gradients = torch.autograd.grad(value, weights, allow_unused=True)
            present = [gradient for gradient in gradients if gradient is not None]
            squares.append(sum(gradient.double().square().sum() for gradient in present))
        return {"trained_fisher_trace": float(torch.stack(squares).mean())}


@check_arguments
def add_memorization_monitor(
    trainer: Any, canaries: PairedCanaries | None = None, **options: Any
) -> MemorizationMonitor:
    """Add a `MemorizationMonitor` to a Trainer before `train()`, and return it.

    Args:
        trainer: The Trainer; its training data are `canaries.dataset`.
        canaries: Pairs of canaries; None omits the test.
        **options: Other arguments of `MemorizationMonitor`.

    Raises:
        InvalidInput: `trainer` is not a Trainer, or does not train on the canaries.
    """
    check_trainer(trainer, "add_memorization_monitor")
    monitor = MemorizationMonitor(trainer, canaries, **options)
    monitor._number = sum(
        isinstance(item, MemorizationMonitor) for item in trainer.callback_handler.callbacks
    )
    losses = MeanLoss(trainer, trainer.compute_loss)

    def compute_and_record(
        model: nn.Module, inputs: Mapping[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        result = losses.call(model, inputs, *args, **kwargs)
        if model.training:
            monitor._attempt(
                "loss of a step", lambda: monitor._losses.append(losses.of(result, kwargs))
            )
        return result

    trainer.compute_loss = compute_and_record
    trainer.add_callback(monitor)
    return monitor
