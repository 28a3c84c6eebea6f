"""Clean-up of files left by killed runs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gapscope.base.errors import UnreadableFile
from gapscope.results.records import RECORD, Record

SECONDS_TO_WRITE = 60


def _is_temporary(name: str) -> bool:
    return re.fullmatch(r"\.(pool|index)\.json\..*\.tmp", name) is not None


def is_unmarked_pool(folder: Path) -> bool:
    """Return True for a pool folder without pool.json that a killed run left.

    Returns:
        True also for an empty one.
    """
    return folder.is_dir() and all(
        path.name in ("runs", "pool.lock", "pool.pid", "index.json", "report.html", "estimator.json")
        or _is_temporary(path.name)
        for path in folder.iterdir()
    )


def remove_temporary_files(folder: Path) -> None:
    """Remove temporary files of killed processes, but not those being written."""
    for path in folder.iterdir():
        if _is_temporary(path.name) and time.time() - path.stat().st_mtime > SECONDS_TO_WRITE:
            path.unlink(missing_ok=True)


def superseded_checkpoints(folder: Path) -> Iterator[Path]:
    """Yield the checkpoints of finished networks.

    That of a failed network stays: run again, it continues from there.

    Yields:
        Checkpoints beside a whole record.
    """
    for path in sorted(folder.glob("runs/*/checkpoint.safetensors")):
        with suppress(UnreadableFile):
            if (path.parent / RECORD).exists() and Record.read(path.parent).status != "failed":
                yield path
