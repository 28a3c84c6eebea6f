"""One training run, step by step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput
from gapscope.base.options import with_prefix
from gapscope.base.randomness import derive_seed
from gapscope.base.samples import Samples
from gapscope.base.specs import TrainingSpec
from gapscope.base.task import task_of
from gapscope.data.corruptions import flip_shift_rotate
from gapscope.inspection.losses import default_loss
from gapscope.inspection.network_errors import explained_errors
from gapscope.inspection.outputs import checked_outputs, device_of
from gapscope.penalties.base import Penalty, forward_with_penalties
from gapscope.penalties.robust_losses import make_loss
from gapscope.training.checkpoints import set_weights
from gapscope.training.randomness import host_random_states, set_host_random_states

OnBatch = Callable[[Tensor, Tensor], None]


def learning_rate_at(settings: TrainingSpec, epochs: float) -> float:
    """Return the learning rate after a fractional number of epochs."""
    # closed forms: torch's schedulers multiply the previous rate, so that the last bits of the weights would depend on
    # interruptions
    base = settings.learning_rate
    factor = settings.schedule_factor
    if settings.schedule == "step":
        return base * factor ** math.floor(epochs / settings.schedule_epochs)
    if settings.schedule == "exponential":
        return base * factor ** math.floor(epochs)
    if settings.schedule == "cyclical":
        height = 1 - abs(epochs / settings.schedule_epochs % 2 - 1)
        return base * (factor + (1 - factor) * height)
    return base


def _make_optimizer(network: nn.Module, settings: TrainingSpec) -> torch.optim.Optimizer:
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    if not parameters:
        raise InvalidInput(
            "Got a network without trainable parameters. Set requires_grad of those to train."
        )
    if settings.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=settings.learning_rate)
    return torch.optim.SGD(
        parameters,
        lr=settings.learning_rate,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
    )


def sizes_of_batches(n: int, batch_size: int) -> list[int]:
    """Return the sizes of an epoch's batches; a last one of a single sample is merged with the one before.

    Batch norm has no statistics of one sample. Batches of one sample that were asked for stay.
    """
    sizes = [batch_size] * (n // batch_size) + ([n % batch_size] if n % batch_size else [])
    if batch_size > 1 and len(sizes) > 1 and sizes[-1] == 1:
        sizes[-2:] = [sizes[-2] + 1]
    return sizes


def batches(n: int, batch_size: int, order: torch.Generator) -> Iterator[Tensor]:
    """Yield shuffled indices in batches of `sizes_of_batches`."""
    yield from torch.randperm(n, generator=order).split(sizes_of_batches(n, batch_size))


WITH_ACCURACY = ("classification", "multi-label")
"""Kinds of tasks whose training accuracy is summed batch by batch."""


class Trainer:
    """State of one training run, as stored in checkpoints, and its steps."""

    def __init__(
        self,
        network: nn.Module,
        called: nn.Module,
        settings: TrainingSpec,
        penalties: Sequence[Penalty],
        seed: int,
        on_epoch: Any,
    ) -> None:
        self.network = network
        self.called = called
        self.settings = settings
        self.penalties = penalties
        # a monitor is saved and resumed with the run
        if hasattr(on_epoch, "load_state_dict"):
            self.monitor = on_epoch
        else:
            self.monitor = None
        self.device = device_of(network)
        self.mixed = settings.precision == "mixed"
        if self.mixed and self.device.type != "cuda":
            raise InvalidInput(
                "training.precision 'mixed' needs a CUDA device; got the CPU. Use 'float32'."
            )
        if settings.channels_last:
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = _make_optimizer(network, settings)
        self.scaler = torch.amp.GradScaler("cuda", enabled=self.mixed)
        self.order = torch.Generator().manual_seed(derive_seed(seed, "order of samples"))
        self.robust_loss = make_loss(settings.loss)
        self.epoch = 0
        # what a checkpoint must agree with
        self.identity: Mapping[str, Any] = {}

    def loss(self, outputs: Tensor, y: Tensor, indices: Tensor) -> Tensor:
        """Return the loss of a batch, without penalties."""
        if self.robust_loss is None:
            return default_loss(outputs, y)
        return self.robust_loss(outputs, y, indices)

    def step(self, x: Tensor, y: Tensor, indices: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Take an optimizer step, and return outputs, loss, penalty and number of correct samples."""
        with torch.autocast("cuda", dtype=torch.float16, enabled=self.mixed):
            outputs, penalty = forward_with_penalties(self.called, x, y, self.penalties)
            loss = self.loss(checked_outputs(outputs, len(x)), y, indices)
        self.optimizer.zero_grad(set_to_none=True)
        with explained_errors():
            self.scaler.scale(loss + penalty).backward()
        if self.settings.gradient_clip is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.network.parameters(), self.settings.gradient_clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        task = task_of(y, is_counted=False)
        n_correct = torch.zeros(())
        if task.kind in WITH_ACCURACY:
            # for several labels per sample the fraction of its labels that are correct
            n_correct = task.agrees(outputs.detach(), y).double().reshape(len(y), -1).mean(1).sum()
        return outputs.detach(), loss.detach(), penalty.detach(), n_correct

    def train_epoch(
        self, samples: Samples, on_batch: OnBatch | None = None
    ) -> dict[str, float] | None:
        """Pass over the samples once (None as soon as the loss is not finite)."""
        settings = self.settings
        n = len(samples)
        totals = torch.zeros(3, dtype=torch.float64, device=self.device)
        self.called.train()
        rate = settings.learning_rate
        n_batches = len(sizes_of_batches(n, settings.batch_size))
        for number, indices in enumerate(batches(n, settings.batch_size, self.order)):
            rate = learning_rate_at(settings, self.epoch + number / n_batches)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            x = samples.inputs[indices].to(self.device)
            y = samples.y[indices].to(self.device)
            if settings.augmentation == "flip_shift_rotate":
                x = flip_shift_rotate(x, generator=torch.default_generator)
            if settings.channels_last and x.ndim == 4:
                x = x.contiguous(memory_format=torch.channels_last)
            outputs, loss, penalty, n_correct = self.step(x, y, indices)
            if on_batch is not None:
                on_batch(samples.original(indices) if samples.has_order else indices, outputs)
            n_correct = n_correct.double().to(self.device)
            totals += torch.stack([loss.double() * len(x), penalty.double() * len(x), n_correct])
            # reading the sums waits for the device: every 50th step does
            if number % 50 == 49 and not bool(totals.isfinite().all()):
                return None
        return self.end_epoch(totals / n, rate, samples.kind in WITH_ACCURACY)

    def end_epoch(self, means: Tensor, rate: float, has_accuracy: bool) -> dict[str, float] | None:
        """Count an epoch and return its row of means (None if training diverged)."""
        self.epoch += 1
        if not bool(means.isfinite().all()):
            return None
        loss, penalty, accuracy = means.tolist()
        row = {"epoch": self.epoch, "train_loss": loss, "penalty": penalty, "learning_rate": rate}
        return row | ({"train_accuracy": accuracy} if has_accuracy else {})

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors (not copied) and other values on which the next epoch depends."""
        tensors = {f"network.{name}": tensor for name, tensor in self.network.state_dict().items()}
        # buffers that the state dictionary omits (persistent=False)
        persistent = {name.removeprefix("network.") for name in tensors}
        buffers = self.network.named_buffers()
        tensors |= {f"buffer.{name}": tensor for name, tensor in buffers if name not in persistent}
        for index, values in self.optimizer.state_dict()["state"].items():
            tensors |= {
                f"optimizer.{index}.{key}": torch.as_tensor(value)
                for key, value in values.items()
                if value is not None
            }
        for index, penalty in enumerate(self.penalties):
            tensors |= {
                f"penalty.{index}.{key}": value for key, value in penalty.state_dict().items()
            }
        if self.robust_loss is not None:
            tensors |= {
                f"loss.{key}": value for key, value in self.robust_loss.state_dict().items()
            }
        tensors |= {"random.order": self.order.get_state(), **host_random_states()}
        if self.device.type == "cuda":
            tensors["random.cuda"] = torch.cuda.get_rng_state(self.device)
        metadata = {
            "epoch": self.epoch,
            "scaler": self.scaler.state_dict(),
            "identity": dict(self.identity),
        }
        if self.monitor is not None:
            metadata["watcher"] = self.monitor.state_dict()
        return tensors, metadata

    def load_state(
        self, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any], source: str
    ) -> None:
        """Resume from the result of `state`."""
        part = partial(with_prefix, tensors)
        set_weights(self.network, part("network."), source)
        buffers = dict(self.network.named_buffers())
        for name, tensor in part("buffer.").items():
            buffers[name].copy_(tensor)
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in part("optimizer.").items():
            index, _, key = name.partition(".")
            state.setdefault(int(index), {})[key] = tensor.clone()
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})
        for index, penalty in enumerate(self.penalties):
            penalty.load_state_dict(part(f"penalty.{index}."))
        if self.robust_loss is not None:
            self.robust_loss.load_state_dict(part("loss."))
        self.order.set_state(tensors["random.order"])
        set_host_random_states(tensors)
        if "random.cuda" in tensors and self.device.type == "cuda":
            torch.cuda.set_rng_state(tensors["random.cuda"], self.device)
        self.scaler.load_state_dict(dict(metadata["scaler"]))
        if self.monitor is not None and "watcher" in metadata:
            self.monitor.load_state_dict(metadata["watcher"])
        self.epoch = int(metadata["epoch"])
