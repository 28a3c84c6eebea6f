"""Two processes that train together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch


def together(function: Callable[[int, str], None], folder: Path) -> None:
    """Call function(rank, folder) in two processes; forked ones, for the import of torch takes longer than the rest."""
    torch.multiprocessing.start_processes(  # pyright: ignore[reportPrivateImportUsage]
        function, (str(folder),), nprocs=2, start_method="fork"
    )
