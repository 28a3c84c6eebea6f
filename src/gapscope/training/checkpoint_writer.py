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
                              else                -> load the state; rows up to the checkpoint's epoch

The history is written first: a kill in between leaves more rows than epochs, and the surplus is cut off.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from gapscope.base.errors import DamagedFile, DamagedFileWarning, UnreadableFile
from gapscope.base.files import read_json_lines, to_json, write_atomically
from gapscope.training.checkpoints import encode_tensors, load_tensors
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


def resume(run: Trainer, folder: Path) -> list[dict[str, Any]]:
    """Load the state of interrupted training, and return the rows of its finished epochs."""
    if not (folder / CHECKPOINT).exists():
        return []
    tensors, metadata = run.state()
    untrained = {name: tensor.detach().clone() for name, tensor in tensors.items()}, metadata
    try:
        tensors, metadata, history = _read(folder)
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
        warnings.warn(
            f"{reason} Training in {folder} begins again.", DamagedFileWarning, stacklevel=3
        )
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
