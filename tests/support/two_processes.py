"""Two processes that train together."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from support.scripts import load_script

# Started from a clean server, never forked from the test's own process: a thread of another test that holds a lock at
# the moment of the fork would leave it locked in the child for ever. The server imports torch once for all tests.
_PROCESSES: Any = get_context("forkserver")
_PROCESSES.set_forkserver_preload(
    ["torch", "torch.distributed", "gapscope.penalties", "gapscope.measures"]
)


def together(function: Callable[[int, str], None], folder: Path) -> None:
    """Call function(rank, folder), a function of a test file, in two processes."""
    file = function.__globals__["__file__"]
    torch.multiprocessing.start_processes(  # pyright: ignore[reportPrivateImportUsage]
        _call, (file, function.__name__, str(folder)), nprocs=2, start_method="forkserver"
    )


def _call(rank: int, file: str, name: str, folder: str) -> None:
    # by its path, because the module of a test file has no name that another process could import
    getattr(load_script(file), name)(rank, folder)
