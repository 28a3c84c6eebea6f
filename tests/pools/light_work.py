"""What workers of the tests do. They import this module, and so it imports neither torch nor gapscope."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def work(job: tuple[str, str]) -> str:
    """Return in a worker, fail, or die the first time or always."""
    kind, folder = job
    marker = Path(folder) / f"seen-{kind}"
    first = not marker.exists()
    marker.touch()
    if kind == "fails":
        raise ValueError("on purpose")
    if kind == "always dies" or (kind == "dies once" and first):
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.05)
    return kind


def light_start() -> None:
    """The start of a worker that does nothing with torch, whose import takes longer than all the rest."""
