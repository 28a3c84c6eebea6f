"""Checkpoint and history of a training, written at most once per second.

    training epoch --> stage: rows as text, state as bytes (of the latest epoch only)
                         |  a write is due (1 s since the last), or training ends or raises
                         v
                       write: history.jsonl, then checkpoint.safetensors, each atomically
                         |  synced to disk after 10 s of training
                         v
    next call ------> resume: no checkpoint       -> start from scratch
                              corrupted           -> warn, restore the state before, start from scratch
                              of another network  -> UnreadableFile
                              of other data, settings, seed or penalties -> UnreadableFile
                              else                -> load the state; rows up to the checkpoint's epoch

The history is written first: a kill in between leaves more rows than epochs, and the surplus is cut off.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from gapscope.base.errors import DamagedFile, DamagedFileWarning, UnreadableFile, join_names
from gapscope.base.files import read_json_lines, to_json, write_atomically
from gapscope.base.samples import Samples
from gapscope.base.user_data import CHANGING_NOTE
from gapscope.base.user_warnings import warn_user
from gapscope.training.checkpoints import encode_tensors, load_tensors
from gapscope.training.recordings import digest_of
from gapscope.training.run import Trainer

CHECKPOINT, HISTORY = "checkpoint.safetensors", "history.jsonl"
# Seconds of training after which files are synced to disk, so that a checkpoint survives a power cut. Syncing takes
# longer than a short epoch, and a shorter run is quickly repeated.
SYNC_AFTER = 10.0
# Seconds between two writes: renaming two files takes longer than one epoch of a small network.
WRITE_INTERVAL = 1.0


def _read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any], list[dict[str, Any]]]:
    """Read checkpoint and history, cut to the checkpoint's epochs."""
    tensors, metadata = load_tensors(folder / CHECKPOINT)
    history = list(read_json_lines(folder / HISTORY))
    epoch = metadata.get("epoch")
    if not isinstance(epoch, int) or len(history) < epoch:
        raise DamagedFile(
            f"{folder / HISTORY} must hold the {epoch} epochs of the checkpoint; got {len(history)}."
        )
    return tensors, metadata, history[:epoch]


def identity_of(run: Trainer, seed: int, samples: Samples, test: Samples | None) -> dict[str, Any]:
    """Return what a training is resumed with, but for its number of epochs, as JSON values by name.

    Data that differ each time they are read have no part in it.

    Args:
        run: The training.
        seed: Its seed.
        samples: Training samples with the labels of its first epoch.
        test: Samples that are scored after every epoch; None without.
    """
    training = {f"training.{name}": value for name, value in run.settings.to_dict().items()}
    del training["training.epochs"]
    # an automatic strength changes during training
    penalties = [type(item).__name__ if item.automatic else repr(item) for item in run.penalties]
    identity = training | {"seed": seed, "penalties": penalties}
    for name, part in (("data", samples), ("test", test)):
        if part is not None and part.has_order and CHANGING_NOTE not in part.notes:
            columns = () if part.form is None else part.form.columns
            identity[name] = digest_of(part.inputs, part.targets, *columns)
    return json.loads(to_json(identity))


def _check_identity(
    stored: Mapping[str, Any] | None, identity: Mapping[str, Any], folder: Path
) -> None:
    """Raise UnreadableFile if a checkpoint is that of another training; warn if it does not say of which."""
    if stored is None:
        warn_user(
            f"{folder / CHECKPOINT}, of an earlier version, does not say with which data, settings and seed it was "
            "trained; it is taken for this training. If it is another one, pass an empty folder.",
        )
        return
    # settings that one version lacks have no value to compare
    shared = [name for name in identity if name in stored]
    others = [name for name in shared if stored[name] != identity[name]]
    if others:
        told = [
            name if name in ("data", "test") else f"{name} {stored[name]} (here {identity[name]})"
            for name in others
        ]
        raise UnreadableFile(
            f"{folder} must be the folder of this training; it holds one with other {join_names(told)}. Pass another "
            "folder, or the same data and settings."
        )


def resume(run: Trainer, folder: Path) -> list[dict[str, Any]]:
    """Load the state of interrupted training, and return the rows of its finished epochs."""
    if not (folder / CHECKPOINT).exists():
        return []
    tensors, metadata = run.state()
    untrained = {name: tensor.detach().clone() for name, tensor in tensors.items()}, metadata
    try:
        tensors, metadata, history = _read(folder)
        _check_identity(metadata.get("identity"), run.identity, folder)
        run.load_state(tensors, metadata, str(folder / CHECKPOINT))
        return history
    except (DamagedFile, KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
        run.load_state(*untrained, "the state before")
        # a checkpoint of another network, or an unreadable one, raises; a corrupted one is ignored with a warning
        if isinstance(error, UnreadableFile) and not isinstance(error, DamagedFile):
            raise
        reason = f"{folder / CHECKPOINT} lacks what training needs."
        if isinstance(error, DamagedFile):
            reason = str(error)
        warn_user(f"{reason} Training in {folder} begins again.", DamagedFileWarning)
        return []


class CheckpointWriter:
    """Writer of finished epochs, at most once per second.

    The first epoch is written immediately; later ones are staged until a write is due, or until `write` is called.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lines: list[str] = []
        self._staged: tuple[str, bytes, bool] | None = None
        self._last_write = -WRITE_INTERVAL

    def stage(self, run: Trainer, history: Sequence[dict[str, Any]]) -> None:
        """Stage the state after an epoch, and write it if a write is due."""
        durable = sum(row.get("seconds", 0.0) for row in history) >= SYNC_AFTER
        self._lines += [to_json(row) + "\n" for row in history[len(self._lines) :]]
        self._staged = "".join(self._lines), encode_tensors(*run.state()), durable
        if time.monotonic() - self._last_write >= WRITE_INTERVAL:
            self.write()

    def write(self) -> None:
        """Write the staged state atomically."""
        if self._staged is None:
            return
        lines, checkpoint, durable = self._staged
        write_atomically(self._folder / HISTORY, lines, durable=durable)
        write_atomically(self._folder / CHECKPOINT, checkpoint, durable=durable)
        self._staged = None
        self._last_write = time.monotonic()
