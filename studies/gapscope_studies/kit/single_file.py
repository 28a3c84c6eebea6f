"""Command of a study that runs everything anew and writes one file."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from gapscope.base.environment import environment
from gapscope.base.files import to_json, write_atomically
from gapscope_studies.kit.provenance import commit


def write_study(description: str | None, run: Callable[[], Mapping[str, Any]]) -> None:
    """Run a study on one thread, and write its results, with where they come from, to the path of the command line.

    Args:
        description: What `--help` prints.
        run: Returns the results, JSON-serializable values by key.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path, help="JSON file to write")
    path = parser.parse_args().path
    torch.set_num_threads(1)  # CPU seconds are those of one thread
    start = time.process_time()
    results = run()
    content = {
        "environment": environment(),
        "commit": commit(),
        "cpu_seconds": time.process_time() - start,
        **results,
    }
    write_atomically(path, to_json(content, indent=1) + "\n")
