"""Checkpoint and history of a training, written at most once per second.

    training epoch --> stage: rows as text, state as bytes (of the latest epoch only)
                         |  write is due (1 s since the last), or training ends or raises
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
from gapscope.training.checkpoints import as_safetensors, load_tensors
from gapscope.training.run import TrainingState

CHECKPOINT, HISTORY = "checkpoint.safetensors", "history.jsonl"
# seconds of training after which files are synced to disk, so that a power cut leaves a checkpoint; syncing takes
# longer than a short epoch, and a shorter run is quickly repeated
SYNCED_FROM = 10.0
# seconds between two writes: renaming two files takes longer than one epoch of a small network
WRITTEN_EVERY = 1.0


def _stored(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any], list[dict[str, Any]]]:
    """Read checkpoint and history of interrupted training, cut to the checkpoint's epochs."""
    tensors, facts = load_tensors(folder / CHECKPOINT)
    history = list(read_json_lines(folder / HISTORY))
    epoch = facts.get("epoch")
    if not isinstance(epoch, int) or len(history) < epoch:
        raise DamagedFile(
            f"{folder / HISTORY} must hold the {epoch} epochs of the checkpoint; it holds {len(history)}."
        )
    return tensors, facts, history[:epoch]


def resume(run: TrainingState, folder: Path) -> list[dict[str, Any]]:
    """Load the state of interrupted training, and return the rows of its finished epochs."""
    # corrupted files are ignored with a warning; a checkpoint of another network, or an unreadable one, is not
    if not (folder / CHECKPOINT).exists():
        return []
    tensors, facts = run.state()
    untouched = {name: tensor.detach().clone() for name, tensor in tensors.items()}, facts
    try:
        tensors, facts, history = _stored(folder)
        run.load_state(tensors, facts, str(folder / CHECKPOINT))
        return history
    except (DamagedFile, KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
        run.load_state(*untouched, "the state before")
        if isinstance(error, UnreadableFile) and not isinstance(error, DamagedFile):
            raise
        reason = error if isinstance(error, DamagedFile) else f"{folder / CHECKPOINT} lacks what training needs."
        warnings.warn(f"{reason} The training in {folder} begins again.", DamagedFileWarning, stacklevel=3)
        return []


class CheckpointWriter:
    """Checkpoint writer that saves finished epochs at most once per second.

    The first epoch is written at once; a later one is staged as bytes until the next write is due, or until `write` is
    called when training ends or raises.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lines: list[str] = []
        self._staged: tuple[str, bytes, bool] | None = None
        self._written = -WRITTEN_EVERY

    def stage(self, run: TrainingState, history: Sequence[dict[str, Any]]) -> None:
        """Stage the state after an epoch, and write it if a write is due."""
        durable = sum(row.get("seconds", 0.0) for row in history) >= SYNCED_FROM
        self._lines += [to_json(row) + "\n" for row in history[len(self._lines) :]]
        self._staged = "".join(self._lines), as_safetensors(*run.state()), durable
        if time.monotonic() - self._written >= WRITTEN_EVERY:
            self.write()

    def write(self) -> None:
        """Write the staged state atomically."""
        if self._staged is None:
            return
        lines, checkpoint, durable = self._staged
        write_atomically(self._folder / HISTORY, lines, durable=durable)
        write_atomically(self._folder / CHECKPOINT, checkpoint, durable=durable)
        self._staged, self._written = None, time.monotonic()
