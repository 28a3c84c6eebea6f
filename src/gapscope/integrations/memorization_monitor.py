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
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gapscope.base.arguments import check_arguments
from gapscope.base.errors import InvalidInput, check_range, require_extra
from gapscope.base.random_streams import make_generator
from gapscope.base.targets import IGNORED
from gapscope.inspection.outputs import raw_outputs
from gapscope.inspection.restoring import preserve_rng_state
from gapscope.integrations.transformers import accumulation_divisor
from gapscope.labels.monitored import PairedCanaries, label_name, paired_p_value
from gapscope.results.formatting import pluralize

require_extra("transformers", "hf")
require_extra("accelerate", "hf")

from transformers import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.models.auto.modeling_auto import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
)


def _is_causal(model: Any) -> bool:
    """Return True if outputs predict the label of the next position."""
    if hasattr(model, "get_base_model"):
        base = model.get_base_model()
    else:
        base = model
    return type(base).__name__ in set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())


def _split(batch: Mapping[str, Any], device: torch.device) -> tuple[dict[str, Tensor], Tensor]:
    tensors = {name: value.to(device) for name, value in batch.items() if isinstance(value, Tensor)}
    return tensors, tensors.pop(label_name(tensors))


def _align(logits: Tensor, labels: Tensor, *, causal: bool) -> tuple[Tensor, Tensor]:
    """Return log probabilities [n, positions, classes] and their labels [n, positions]."""
    if labels.ndim == 1:
        logits = logits[:, None]
        labels = labels[:, None]
    elif causal:
        logits = logits[:, :-1]
        labels = labels[:, 1:]
    return logits.float().log_softmax(-1), labels


def sequence_losses(logits: Tensor, labels: Tensor, *, causal: bool) -> Tensor:
    """Return the mean loss [n] (nats) per sample over its labelled positions."""
    logs, labels = _align(logits, labels, causal=causal)
    losses = F.nll_loss(logs.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
    return losses.sum(1) / (labels != IGNORED).sum(1).clamp(min=1)


class MemorizationMonitor(TrainerCallback):
    r"""Monitor of memorization: gap to first visits, canary test, gradient norms.

    Each row (in `rows`, and in `trainer.state.log_history`) holds

    - `training_loss`: mean loss of the epoch's steps, as computed by the Trainer.
    - `first_visit_loss`: mean loss of the steps in the second half of the first epoch. Its samples were new, so that
      this is a validation loss of the network half an epoch earlier, on average.
    - `first_visit_gap`: first_visit_loss - training_loss, from the second epoch on: an upper bound on memorization, for
      it includes later learning that applies to all samples.
    - `canary_gap`: mean loss of the canaries that were not trained on less that of those that were, and its
      `canary_p_value` (`gapscope.labels.monitored.paired_p_value`).
    - `trained_fisher_trace`: mean over some samples of $|\nabla_\theta \log p(y|x)|^2$ by the trained weights (with
      LoRA those of the adapter), for labels y sampled from the prediction. Omitted for sharded weights (FSDP).

    `flagged_at` is the first epoch at which the p-value is at most `level` divided by the number of epochs, so that
    a network that has learned nothing from the canaries is flagged with probability `level` at most. It says that
    memorization has begun, not that training should end: the accuracy on new data often rises for epochs after it. So
    few pairs that no p-value is small enough cause a warning.

    Weights are those without the monitor. With several processes each evaluates every canary; losses of steps are means
    over processes.

    Args:
        trainer: The Trainer whose training is monitored.
        canaries: Pairs; None omits the test.
        level: Probability of a false flag.
        trace_samples: Number of samples of the Fisher trace; 0 omits it.
        stop: Whether to end training at the flag; this costs accuracy where memorization begins before learning ends.
        seed: Seed of the labels that are sampled for the Fisher trace.

    Attributes:
        rows: One mapping per recording.
        flagged_at: Epoch of the flag, or None.
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
        check_range("level", level, 0, 1, low_open=True)
        check_range("trace_samples", trace_samples, 0)
        self.trainer = trainer
        self.canaries = canaries
        self.level = level
        self.stop = stop
        self.trace_samples = trace_samples
        self.random = make_generator(seed, "drawn labels")
        self.rows: list[dict[str, float]] = []
        self.flagged_at: float | None = None
        # losses of the epoch's steps, on the device, without synchronization
        self._losses: list[Tensor] = []
        self._first_visit_loss = math.nan
        self._seconds = 0.0
        self._started_at = math.nan
        self._n_epochs = 1

    def __repr__(self) -> str:
        flag = "not flagged"
        if self.flagged_at is not None:
            flag = f"memorization has begun at epoch {self.flagged_at:g}, accuracy on new data may still rise"
        p_values = [row["canary_p_value"] for row in self.rows if "canary_p_value" in row]
        last = ""
        if p_values:
            last = f", last p-value {p_values[-1]:.2g}"
        canaries = ""
        if self.canaries is not None:
            canaries = f"; {self.canaries!r}"
        observations = pluralize(len(self.rows), "observation")
        return f"MemorizationMonitor({flag}; level {self.level:g}; {observations}{last}{canaries})"

    @property
    def overhead_fraction(self) -> float:
        """Fraction of the CPU time since training began that the monitor took."""
        return self._seconds / (time.process_time() - self._started_at)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Start the clock, and count the epochs to come.

        Args:
            args: Arguments of the Trainer.
            state: State of the Trainer.
            control: Flags of the Trainer.
            _: Further objects of the Trainer; they are not used.
        """
        self._started_at = time.process_time()
        self._n_epochs = max(1, round(state.num_train_epochs))
        if (
            self.canaries is not None
            and self.canaries.smallest_p_value > self.level / self._n_epochs
        ):
            warnings.warn(
                f"{len(self.canaries)} pairs of canaries cannot show memorization at the level {self.level:g} in "
                f"{self._n_epochs} epochs. Pass number= for more pairs, or a larger level.",
                stacklevel=2,
            )

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
        start = time.process_time()
        epoch = round(state.epoch or 0)
        losses = torch.stack(self._losses or [torch.tensor(math.nan)]).double()
        means = torch.stack([losses.mean(), losses[len(losses) // 2 :].mean()])
        if (accelerator := self.trainer.accelerator).num_processes > 1:
            means = accelerator.reduce(means.to(accelerator.device), "mean")
        loss, second_half = means.tolist()
        self._losses = []
        if epoch <= 1:
            self._first_visit_loss = second_half
        row = {"epoch": epoch, "training_loss": loss, "first_visit_loss": self._first_visit_loss}
        if epoch > 1:
            row["first_visit_gap"] = self._first_visit_loss - loss
        mode = self.trainer.model_wrapped.training
        try:
            with preserve_rng_state():
                row |= self._test_canaries(epoch) | self._fisher_trace()
        finally:
            self.trainer.model_wrapped.train(mode)
        self.rows.append(row)
        state.log_history.append({**row, "step": state.global_step})
        self._seconds += time.process_time() - start
        if self.stop and self.flagged_at is not None:
            control.should_training_stop = True

    def _batches(self, samples: Sequence[Any]) -> list[tuple[dict[str, Tensor], Tensor]]:
        size = self.trainer.args.per_device_eval_batch_size
        device = self.trainer.accelerator.device
        parts = [samples[start : start + size] for start in range(0, len(samples), size)]
        return [_split(self.trainer.data_collator(part), device) for part in parts]

    @torch.no_grad()
    def _losses_of(self, samples: Sequence[Any]) -> Tensor:
        # the wrapped model, because sharded weights need a call by all processes
        model = self.trainer.model_wrapped.eval()
        causal = _is_causal(self.trainer.model)
        parts = self._batches(samples)
        return torch.cat(
            [sequence_losses(raw_outputs(model(**x)), y, causal=causal) for x, y in parts]
        )

    def _test_canaries(self, epoch: int) -> dict[str, float]:
        if self.canaries is None:
            return {}
        losses = self._losses_of([*self.canaries.trained, *self.canaries.others]).cpu()
        trained, others = losses.double().chunk(2)
        differences = (others - trained).tolist()
        p_value = paired_p_value(differences)
        if self.flagged_at is None and p_value <= self.level / self._n_epochs:
            self.flagged_at = epoch
        return {"canary_gap": sum(differences) / len(differences), "canary_p_value": p_value}

    def _fisher_trace(self) -> dict[str, float]:
        trainer = self.trainer
        if not self.trace_samples or trainer.is_fsdp_enabled:
            return {}
        model = trainer.model.eval()
        causal = _is_causal(trainer.model)
        weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
        count = min(self.trace_samples, len(trainer.train_dataset))
        squares = []
        for index in torch.randperm(len(trainer.train_dataset), generator=self.random)[
            :count
        ].tolist():
            (x, y), *_ = self._batches([trainer.train_dataset[index]])
            with torch.enable_grad():
                logs, labels = _align(raw_outputs(model(**x)), y, causal=causal)
                logs = logs[labels != IGNORED]
                sampled = torch.multinomial(logs.detach().exp().cpu(), 1, generator=self.random).to(
                    logs.device
                )
                gradients = torch.autograd.grad(
                    logs.gather(1, sampled).sum(), weights, allow_unused=True
                )
            squares.append(
                sum(
                    gradient.double().square().sum()
                    for gradient in gradients
                    if gradient is not None
                )
            )
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
    if not hasattr(trainer, "compute_loss"):
        raise InvalidInput(
            f"Got {type(trainer).__name__}; add_memorization_monitor needs a transformers Trainer."
        )
    if canaries is not None and trainer.train_dataset is not canaries.dataset:
        raise InvalidInput(
            "Got a Trainer with data other than canaries.dataset. Pass train_dataset=canaries.dataset."
        )
    monitor = MemorizationMonitor(trainer, canaries, **options)
    compute_loss = trainer.compute_loss

    def compute_and_record(
        model: nn.Module, inputs: Mapping[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        result = compute_loss(model, inputs, *args, **kwargs)
        if model.training:
            if isinstance(result, tuple):
                loss = result[0]
            else:
                loss = result
            monitor._losses.append(loss.detach() * accumulation_divisor(trainer, kwargs))
        return result

    trainer.compute_loss = compute_and_record
    trainer.add_callback(monitor)
    return monitor
