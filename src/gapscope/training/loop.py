"""One plain loop: network + samples + settings -> trained network and history; resumable after every epoch."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gapscope.base.errors import DamagedFile, DamagedFileWarning, InvalidInput, UnreadableFile
from gapscope.base.files import read_json_lines, to_json, write_atomically
from gapscope.base.randomness import stream_seed
from gapscope.base.records import Status
from gapscope.base.samples import Samples, as_samples
from gapscope.base.specs import TrainingSpec
from gapscope.data.augmentation import flip_shift_rotate
from gapscope.inspection.losses import loss_of, scores
from gapscope.inspection.outputs import check_labels, checked_outputs, device_of
from gapscope.penalties.base import Penalty, outputs_with_penalties
from gapscope.penalties.registry import make_penalty
from gapscope.penalties.robust_losses import make_loss
from gapscope.training.checkpoints import load_tensors, save_tensors, set_weights
from gapscope.training.randomness import host_random_states, reproducible, set_host_random_states

OnBatch = Callable[[Tensor, Tensor], None]

CHECK_FINITE_EVERY = 50
CHECKPOINT, HISTORY = "checkpoint.safetensors", "history.jsonl"


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """How training went.

    Attributes:
        status: "finished" or "diverged" (the loss became NaN or infinite).
        stopped: Why it ended, in words.
        history: One mapping an epoch: epoch, train_loss (mean over batches, training mode, without penalties),
            train_accuracy (the same), penalty (mean over batches), learning_rate (at the end of the epoch), seconds,
            and test_loss, test_accuracy (evaluation mode) where test samples were given.
    """

    status: Status
    stopped: str
    history: Sequence[dict[str, Any]] = field(default_factory=list)


def learning_rate_at(settings: TrainingSpec, epochs: float) -> float:
    """Return the learning rate after `epochs` (fractional) epochs.

    Args:
        settings: Names the schedule, see TrainingSpec.
        epochs: Number of epochs done.

    Returns:
        The learning rate of the next step.

    >>> learning_rate_at(TrainingSpec(learning_rate=1.0, schedule="step", schedule_epochs=2), 2.5)
    0.1
    """
    # closed forms of the time, without a state to keep: torch's schedulers multiply the last rate step after step, so
    # that its last bits, and with them the weights, would depend on the path to it
    base, factor = settings.learning_rate, settings.schedule_factor
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
        raise InvalidInput("A network must have trainable parameters to be trained; this one has none.")
    if settings.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=settings.learning_rate)
    return torch.optim.SGD(
        parameters, lr=settings.learning_rate, momentum=settings.momentum, nesterov=settings.nesterov
    )


def _batches(n: int, batch_size: int, order: torch.Generator) -> Iterator[Tensor]:
    """Shuffled indices; a last batch of a single sample joins the one before it: batch norm cannot take it."""
    shuffled = torch.randperm(n, generator=order)
    sizes = [batch_size] * (n // batch_size) + ([n % batch_size] if n % batch_size else [])
    if len(sizes) > 1 and sizes[-1] == 1:
        sizes[-2:] = [sizes[-2] + 1]
    yield from shuffled.split(sizes)


class _Run:
    """The state of one training: what a checkpoint holds."""

    def __init__(
        self, network: nn.Module, settings: TrainingSpec, penalties: Sequence[Penalty], seed: int, watcher: Any
    ) -> None:
        self.network, self.settings, self.penalties = network, settings, penalties
        # a monitor is resumed with the training that it watches
        self.watcher = watcher if hasattr(watcher, "load_state_dict") else None
        self.device = device_of(network)
        self.mixed = settings.precision == "mixed"
        if self.mixed and self.device.type != "cuda":
            raise InvalidInput("training.precision 'mixed' needs a CUDA device; got the CPU. Use 'float32'.")
        if settings.channels_last:
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = _make_optimizer(network, settings)
        self.scaler = torch.amp.GradScaler("cuda", enabled=self.mixed)
        self.order = torch.Generator().manual_seed(stream_seed(seed, "order of samples"))
        self.robust_loss = make_loss(settings.loss)
        self.epoch = 0

    def loss(self, outputs: Tensor, y: Tensor, indices: Tensor) -> Tensor:
        """What is trained on a batch, without penalties."""
        return loss_of(outputs, y) if self.robust_loss is None else self.robust_loss(outputs, y, indices)

    def step(self, x: Tensor, y: Tensor, indices: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """One optimisation step; returns outputs, loss, penalty and number of right predictions of the batch."""
        with torch.autocast("cuda", dtype=torch.float16, enabled=self.mixed):
            outputs, penalty = outputs_with_penalties(self.network, x, y, self.penalties)
            loss = self.loss(checked_outputs(outputs, len(x)), y, indices)
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(loss + penalty).backward()
        if self.settings.gradient_clip is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.network.parameters(), self.settings.gradient_clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        right = (outputs.detach().argmax(1) == y).sum() if not y.is_floating_point() else torch.zeros(())
        return outputs.detach(), loss.detach(), penalty.detach(), right

    def train_epoch(self, samples: Samples, on_batch: OnBatch | None = None) -> dict[str, float] | None:
        """One pass over the samples; None as soon as the loss is not finite."""
        settings, n = self.settings, len(samples)
        totals = torch.zeros(3, dtype=torch.float64, device=self.device)
        self.network.train()
        rate = settings.learning_rate
        n_batches = max(1, math.ceil(n / settings.batch_size))
        for number, indices in enumerate(_batches(n, settings.batch_size, self.order)):
            rate = learning_rate_at(settings, self.epoch + number / n_batches)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            assert samples.targets is not None
            x, y = samples.inputs[indices].to(self.device), samples.targets[indices].to(self.device)
            if settings.augmentation == "flip_shift_rotate":
                x = flip_shift_rotate(x, generator=torch.default_generator)
            if settings.channels_last and x.ndim == 4:
                x = x.contiguous(memory_format=torch.channels_last)
            outputs, loss, penalty, right = self.step(x, y, indices)
            if on_batch is not None:
                on_batch(indices, outputs)
            totals += torch.stack([loss.double() * len(x), penalty.double() * len(x), right.double().to(self.device)])
            if number % CHECK_FINITE_EVERY == CHECK_FINITE_EVERY - 1 and not bool(totals.isfinite().all()):
                return None
        self.epoch += 1
        if not bool(totals.isfinite().all()):
            return None
        loss, penalty, right = (totals / n).tolist()
        row = {"epoch": self.epoch, "train_loss": loss, "penalty": penalty, "learning_rate": rate}
        return row | ({"train_accuracy": right} if samples.is_classification else {})

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything that the next epoch depends on: tensors (not copied) and facts."""
        tensors = {f"network.{name}": tensor for name, tensor in self.network.state_dict().items()}
        kept = {name.removeprefix("network.") for name in tensors}
        tensors |= {f"buffer.{name}": tensor for name, tensor in self.network.named_buffers() if name not in kept}
        for index, values in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{key}": torch.as_tensor(value) for key, value in values.items()
                        if value is not None}  # fmt: skip
        for index, penalty in enumerate(self.penalties):
            tensors |= {f"penalty.{index}.{key}": value for key, value in penalty.state_dict().items()}
        if self.robust_loss is not None:
            tensors |= {f"loss.{key}": value for key, value in self.robust_loss.state_dict().items()}
        tensors |= {"random.order": self.order.get_state(), **host_random_states()}
        if self.device.type == "cuda":
            tensors["random.cuda"] = torch.cuda.get_rng_state(self.device)
        facts = {"epoch": self.epoch, "scaler": self.scaler.state_dict()}
        return tensors, facts if self.watcher is None else facts | {"watcher": self.watcher.state_dict()}

    def take_up(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], source: str) -> None:
        """Go on from what `state` returned."""

        def part(prefix: str) -> dict[str, Tensor]:
            return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}

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
        self.scaler.load_state_dict(dict(facts["scaler"]))
        if self.watcher is not None and "watcher" in facts:
            self.watcher.load_state_dict(facts["watcher"])
        self.epoch = int(facts["epoch"])


def _check_samples(network: nn.Module, samples: Samples) -> None:
    if samples.targets is None:
        raise InvalidInput("Training needs targets; got inputs alone. Pass data as (x, y).")
    if samples.is_classification:
        x = samples.inputs[:2].to(device_of(network))
        training = network.training
        with torch.no_grad(), torch.random.fork_rng():
            outputs = checked_outputs(network.eval()(x), len(x))
        network.train(training)
        check_labels(samples.targets, outputs.shape[1])


def _stored(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any], list[dict[str, Any]]]:
    """Checkpoint and history of an interrupted training; the history holds exactly the finished epochs."""
    tensors, facts = load_tensors(folder / CHECKPOINT)
    history = list(read_json_lines(folder / HISTORY))
    epoch = facts.get("epoch")
    if not isinstance(epoch, int) or len(history) < epoch:
        raise DamagedFile(
            f"{folder / HISTORY} must hold the {epoch} epochs of the checkpoint; it holds {len(history)}."
        )
    return tensors, facts, history[:epoch]


def _resume(run: _Run, folder: Path | None) -> list[dict[str, Any]]:
    """Take up an interrupted training; one whose files are damaged begins anew, with a warning."""
    if folder is None or not (folder / CHECKPOINT).exists():
        return []
    tensors, facts = run.state()
    untouched = {name: tensor.detach().clone() for name, tensor in tensors.items()}, facts
    try:
        tensors, facts, history = _stored(folder)
        run.take_up(tensors, facts, str(folder / CHECKPOINT))
        return history
    except (DamagedFile, KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
        run.take_up(*untouched, "the state before")
        if isinstance(error, UnreadableFile) and not isinstance(error, DamagedFile):
            raise
        reason = error if isinstance(error, DamagedFile) else f"{folder / CHECKPOINT} lacks what training needs."
        warnings.warn(f"{reason} The training in {folder} begins anew.", DamagedFileWarning, stacklevel=3)
        return []


def _write_history(folder: Path | None, history: Sequence[dict[str, Any]]) -> None:
    if folder is not None:
        write_atomically(folder / HISTORY, "".join(to_json(row) + "\n" for row in history))


def _stop_reason(settings: TrainingSpec, history: Sequence[dict[str, Any]]) -> str:
    threshold = settings.stop_at_train_loss
    if threshold is not None:
        reached = sum(float(row["train_loss"]) <= threshold for row in history)
        if reached >= settings.stop_epochs:
            return f"training loss at most {threshold:g} in {settings.stop_epochs} epoch(s)"
    return f"{settings.epochs} epochs" if len(history) >= settings.epochs else ""


def train(
    network: nn.Module,
    data: Any,
    settings: TrainingSpec,
    *,
    seed: int = 0,
    test: Any = None,
    penalties: Sequence[Penalty] | None = None,
    folder: Path | None = None,
    on_epoch: Callable[[nn.Module, dict[str, Any]], None] | None = None,
    on_batch: OnBatch | None = None,
) -> TrainingResult:
    """Train `network` in place and return how it went; the same seed and machine give bit-identical weights.

    The loss is `inspection.losses.loss_of` (or what `settings.loss` names) plus the penalties. With `folder` the state
    is kept there after every epoch (`checkpoint.safetensors`, `history.jsonl`): calling `train` again with the same
    arguments goes on from the last finished epoch and ends with the weights that the unbroken run has; buffers that are
    not part of the state dictionary, and the random streams of torch, NumPy and Python, are kept too. Where these files
    are damaged the training begins anew, with a `DamagedFileWarning`. Global random states are left as they were.

    Args:
        network: Trained in place, on the device it is on; left in evaluation mode.
        data: Training data: a pair (x, y), Samples, a Dataset or a DataLoader. It is read once and held in
            memory; random transforms are applied once, a shuffled order depends on the seed alone.
        settings: Everything about optimisation.
        seed: Seed of the order of samples and of dropout masks (the initial weights are the network's own).
        test: Data in any of these forms, scored after every epoch, never trained on and never used to stop.
        penalties: Penalty objects to use instead of `settings.penalties`.
        folder: An existing folder for checkpoint and history.
        on_epoch: Called after every epoch with the network and the epoch's row, which it may extend with numbers. A
            `Monitor` also looks at the untrained network, and is kept in the checkpoint.
        on_batch: Called after every step with the positions of the batch's samples in the data, and the outputs that
            the network gave them in training mode; what the training pass says of each sample, for nothing.

    Returns:
        Status, reason and history. A loss that is not finite ends training with status "diverged", and so do weights
        that are not finite after the last step.

    Raises:
        InvalidInput: Samples, labels, network and settings do not fit together.
        UnreadableFile: The folder holds the checkpoint of another network, or one that cannot be read.
        NotWritten: The folder cannot be written.
    """
    # loaders that shuffle and random transforms draw from the global state: the same seed reads the same samples
    with reproducible(device_of(network), stream_seed(seed, "data")):
        samples, held_out = as_samples(data), None if test is None else as_samples(test)
    _check_samples(network, samples)
    if penalties is None:
        penalties = [make_penalty(item.name, item.options) for item in settings.penalties]
    run = _Run(network, settings, penalties, seed, on_epoch)
    with reproducible(run.device, stream_seed(seed, "training")):
        history = _resume(run, folder)
        if not history and hasattr(on_epoch, "begin"):
            on_epoch.begin(network)  # type: ignore[union-attr]
        while not (stopped := _stop_reason(settings, history)):
            start = time.perf_counter()
            row: dict[str, Any] | None = run.train_epoch(samples, on_batch)
            if row is None:
                network.eval()
                return TrainingResult(
                    status="diverged", stopped=f"loss not finite in epoch {len(history) + 1}", history=history
                )
            network.eval()
            if held_out is not None:
                row |= {f"test_{name}": value for name, value in scores(network, held_out).items()}
            if on_epoch is not None:
                on_epoch(network, row)
            row["seconds"] = round(time.perf_counter() - start, 4)
            history.append(row)
            _write_history(folder, history)
            if folder is not None:
                save_tensors(folder / CHECKPOINT, *run.state())
    network.eval()
    if history and not all(bool(weight.isfinite().all()) for weight in network.parameters() if weight.requires_grad):
        return TrainingResult(
            status="diverged", stopped=f"weights not finite after epoch {len(history)}", history=history
        )
    return TrainingResult(status="finished", stopped=stopped, history=history)
