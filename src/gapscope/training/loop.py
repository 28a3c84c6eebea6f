"""Training of one network, resumable after each epoch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from gapscope.base.arguments import check_arguments
from gapscope.base.errors import InvalidInput, NotMeasurable, NotWritten
from gapscope.base.randomness import derive_seed
from gapscope.base.samples import Samples
from gapscope.base.specs import TrainingSpec
from gapscope.base.user_warnings import warn_user
from gapscope.inspection.losses import evaluate
from gapscope.inspection.network_checks import check_module
from gapscope.inspection.outputs import device_of
from gapscope.inspection.validation import Ready, ready
from gapscope.penalties.base import Penalty, make_penalty
from gapscope.results.records import Status
from gapscope.training.alarms.base import Alarm
from gapscope.training.checkpoint_writer import CheckpointWriter, identity_of, resume
from gapscope.training.randomness import RngState, reproducible
from gapscope.training.recordings import ON_EPOCH
from gapscope.training.run import OnBatch, Trainer


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """Result of one training run.

    Attributes:
        status: "finished" or "diverged" (the loss became NaN or infinite).
        stop_reason: Why training ended.
        history: One mapping per epoch: epoch, train_loss and train_accuracy (means over batches in training mode,
            without penalties), penalty (mean over batches), learning_rate (at the end of the epoch), seconds, and with
            test samples test_loss and test_accuracy (evaluation mode).
    """

    status: Status
    stop_reason: str
    history: Sequence[dict[str, Any]] = field(default_factory=list)

    def __repr__(self) -> str:
        row = self.history[-1] if self.history else {}
        last = ", ".join(f"{name} {value:.4g}" for name, value in row.items())
        return f"TrainingResult({self.status}: {self.stop_reason}; {last})"


def _stop_reason(settings: TrainingSpec, history: Sequence[dict[str, Any]]) -> str:
    threshold = settings.stop_at_train_loss
    if threshold is not None:
        n_below = sum(float(row["train_loss"]) <= threshold for row in history)
        if n_below >= settings.stop_epochs:
            return f"training loss at most {threshold:g} in {settings.stop_epochs} epoch(s)"
    if len(history) > settings.epochs:
        return f"{len(history)} epochs, of the checkpoint"
    if len(history) == settings.epochs:
        return f"{settings.epochs} epochs"
    return ""


@dataclass
class _Training:
    """Training of one network, epoch by epoch. `result` is None until it has ended."""

    run: Trainer
    samples: Samples
    held_out: Ready | None
    seed: int
    folder: Path | None
    on_epoch: Callable[[nn.Module, dict[str, Any]], None] | None
    on_batch: OnBatch | None
    alarm: Alarm | None
    history: list[dict[str, Any]] = field(default_factory=list)
    result: TrainingResult | None = None

    def __post_init__(self) -> None:
        if self.folder is None:
            self._writer = None
        else:
            self._writer = CheckpointWriter(self.folder)

    def run_to_end(self) -> TrainingResult:
        """Train the remaining epochs, and write the last finished one even after an error or an interrupt."""
        # entered for each epoch, so that other threads may have their turn
        rng = RngState(self.run.device, derive_seed(self.seed, "training"))
        try:
            with rng.active():
                self._begin()
            while self.result is None:
                with rng.active():
                    self._train_epoch()
        finally:
            with suppress(NotWritten):  # would hide the error that ended the body
                self._write()
        return self.result

    def _begin(self) -> None:
        """Resume interrupted training, or let the monitor observe the untrained network."""
        if self.folder is not None:
            samples = self.samples
            if self.alarm is not None:
                samples = self.alarm.training_samples(samples, at_start=True)
            test = None if self.held_out is None else self.held_out.samples
            self.run.identity = identity_of(self.run, self.seed, samples, test)
            self.history = resume(self.run, self.folder)
            if len(self.history) > self.run.settings.epochs:
                warn_user(
                    f"{self.folder} holds a training of {len(self.history)} epochs; got epochs="
                    f"{self.run.settings.epochs}. The network has the weights after {len(self.history)}; pass another "
                    "folder for fewer.",
                )
        if hasattr(self.on_epoch, "plan_epochs"):
            self.on_epoch.plan_epochs(self.run.settings.epochs)  # type: ignore[union-attr]
        if not self.history and hasattr(self.on_epoch, "begin"):
            self.on_epoch.begin(self.run.network)  # type: ignore[union-attr]
        self._end_if_done()

    def _train_epoch(self) -> None:
        """Train, score and store one epoch."""
        start = time.perf_counter()
        samples = self.samples
        if self.alarm is not None:
            samples = self.alarm.training_samples(samples)
        row = self.run.train_epoch(samples, self.on_batch)
        network = self.run.network
        history = self.history
        self.run.called.eval()
        if row is None:
            self._end("diverged", f"loss not finite in epoch {len(history) + 1}")
            return
        if self.held_out is not None:
            scores = evaluate(self.held_out.network, self.held_out.samples, missing=True)
            row |= {f"test_{name}": value for name, value in scores.items()}
        if self.on_epoch is not None:
            token = ON_EPOCH.set(self.on_epoch)
            try:
                self.on_epoch(network, row)
            finally:
                ON_EPOCH.reset(token)
        row["seconds"] = round(time.perf_counter() - start, 4)
        history.append(row)
        if self._writer is not None:
            self._writer.stage(self.run, history)
        self._end_if_done()

    def _end_if_done(self) -> None:
        reason = _stop_reason(self.run.settings, self.history)
        network = self.run.network
        if not reason:
            return
        network.eval()
        weights = [weight for weight in network.parameters() if weight.requires_grad]
        if self.history and not all(bool(weight.isfinite().all()) for weight in weights):
            self._end("diverged", f"weights not finite after epoch {len(self.history)}")
        else:
            self._end("finished", reason)

    def _write(self) -> None:
        """Write the last finished epoch to the folder, if it is not there yet."""
        if self._writer is not None:
            self._writer.write()

    def _end(self, status: Status, reason: str) -> None:
        self._write()
        if status == "finished" and self.held_out is not None:
            try:
                evaluate(self.held_out.network, self.held_out.samples)
            except NotMeasurable as error:
                warn_user(f"Scores of test samples are NaN. {error}")
        self.result = TrainingResult(status=status, stop_reason=reason, history=self.history)


@check_arguments
def train(
    network: nn.Module,
    data: Any,
    settings: TrainingSpec,
    *,
    seed: int = 0,
    test: Any = None,
    penalties: Sequence[Penalty] | None = None,
    folder: str | Path | None = None,
    on_epoch: Callable[[nn.Module, dict[str, Any]], None] | None = None,
    on_batch: OnBatch | None = None,
) -> TrainingResult:
    """Train `network` in place, with bit-identical weights for a seed and machine.

    The loss is cross-entropy for class labels and mean squared error for regression (or `settings.loss`), plus the
    penalties. With `folder`, the state is saved after every epoch, but at most once per second, and when training ends
    or is interrupted (`checkpoint.safetensors`, `history.jsonl`). The same call then continues from the last finished
    epoch, and ends with the weights of an unbroken run; more epochs may be asked for. If these files are damaged,
    training begins again with a `DamagedFileWarning`. Global random states are restored.

    Args:
        network: Trained in place, on its device; left in evaluation mode.
        data: Training data in any form that `gapscope.measure` takes. It is read once and held in memory, so random
            transforms are applied once.
        settings: Everything about optimization.
        seed: Seed of the order of samples and of dropout masks (not of the initial weights).
        test: Data scored after every epoch; never used to train or to stop, None without.
        penalties: Penalty objects to use instead of `settings.penalties`; None builds those.
        folder: Existing folder for checkpoint and history; None writes no files.
        on_epoch: Called after every epoch with the network and the epoch's row, which it may extend with numbers. A
            `Monitor` also observes the untrained network, and is saved in the checkpoint. None for no call.
        on_batch: Called after every step with the row numbers of the batch's samples in `data` (their positions in the
            order read, if the data have no fixed order) and their outputs in training mode. None for no call.

    Returns:
        Status, reason and history. The status is "diverged" if the loss, or the final weights, are not finite.

    Raises:
        InvalidInput: Samples, labels, network and settings do not fit together.
        UnreadableFile: The folder holds the checkpoint of another network, or of a training with other data, settings,
            seed or penalties, or one that cannot be read.
        NotWritten: The folder cannot be written.

    >>> import gapscope as gs
    >>> train = gs.load_dataset("digits").train.first(300)
    >>> network = gs.build_network("fully_connected", input_shape=(1, 8, 8), n_outputs=10, width=64)
    >>> result = gs.train(network, train, gs.TrainingSpec(epochs=5, momentum=0.9))
    >>> result.status, len(result.history)
    ('finished', 5)
    >>> round(result.history[-1]["train_accuracy"], 1)
    0.7
    """
    # shuffling loaders and random transforms use the global streams, seeded here
    check_module(network)
    with reproducible(device_of(network), derive_seed(seed, "data")):
        prepared = ready(network, data, needs=("targets", "outputs"))
        held_out = None if test is None else prepared.adapt(test)
    alarm = getattr(on_epoch, "alarm", None)
    if not isinstance(alarm, Alarm):
        alarm = None
    else:
        alarm.check_training(prepared.samples)
    if penalties is None:
        penalties = [make_penalty(item.name, item.options) for item in settings.penalties]
    for penalty in penalties:
        if not isinstance(penalty, Penalty):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(
                f"penalties must be penalties, such as gapscope.GradientSimilarityPenalty; got {penalty!r}."
            )
    # from one input tensor to outputs [n, K]: the network or its adapter
    if prepared.network is prepared.bare:
        called = network
    else:
        called = prepared.network
    run = Trainer(network, called, settings, penalties, seed, on_epoch)
    path = None if folder is None else Path(folder)
    training = _Training(run, prepared.samples, held_out, seed, path, on_epoch, on_batch, alarm)
    return training.run_to_end()
