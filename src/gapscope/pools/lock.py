"""Lock of a pool: one process runs it at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gapscope.base.errors import GapscopeError, NotWritten


@contextmanager
def lock_pool(folder: Path) -> Iterator[None]:
    """Hold the lock of a pool, which the system releases even if the process is killed.

    Raises:
        GapscopeError: Another process holds it.
        NotWritten: The folder is not writable.
    """
    import filelock

    lock = filelock.FileLock(folder / "pool.lock", timeout=0)
    holder = folder / "pool.pid"
    try:
        lock.acquire()
        holder.write_text(str(os.getpid()))
    except filelock.Timeout:
        number = holder.read_text().strip() if holder.exists() else ""
        raise GapscopeError(
            f"{folder} must be run by one process at a time; process {number or '?'} is running it. Wait for "
            "it, or use another folder."
        ) from None
    except OSError as error:
        lock.release()
        raise NotWritten(
            f"{folder} must be writable to run a pool in it; locking it failed ({error.strerror or error}). "
            "Correct its permissions or free some space, then run the same command again."
        ) from None
    try:
        yield
    finally:
        lock.release()
