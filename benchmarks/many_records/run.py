"""A pool of many records that nobody trained: what asking it costs, with its index and without.

    python benchmarks/many_records/run.py --folder /tmp/pool --out benchmarks/results/many_records.json
    python benchmarks/many_records/run.py --networks 500 --folder /tmp/small --out small.json

Writes the pool first (two files a network, 10 kB), unless it is there. Every question is asked by a process of its own,
one thread, as the command line asks it; seconds are of the processor, with all imports, and of the clock. "first" is
the first question to a pool without an index, which opens every file; "opened" counts the files below runs/ that the
question opened. A file that says so is read again: what is in --out is asked again only with --again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from synthetic import fill

QUESTIONS: dict[str, list[str]] = {
    "status, first": ["pool", "status", "GRID", "POOL"],
    "status": ["pool", "status", "GRID", "POOL"],
    "leaderboard": ["leaderboard", "POOL"],
    "report": ["report", "POOL"],
}


def asked(arguments: list[str]) -> dict[str, Any]:
    """Run one command of gapscope in this process."""
    opened = 0

    def count(event: str, args: tuple[Any, ...]) -> None:
        nonlocal opened
        # an audit hook hears of io.open and of the os.open under it
        if event == "open" and isinstance(args[1], str) and "/runs/" in str(args[0]):
            opened += 1

    sys.addaudithook(count)
    from gapscope.cli import app

    clock = time.perf_counter()
    try:
        app(arguments, standalone_mode=False)
    except SystemExit as stopped:
        if stopped.code:
            raise
    seconds = sum(os.times()[:2])
    return {"seconds": seconds, "clock_seconds": time.perf_counter() - clock, "opened": opened}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", type=int, default=100_000, help="a multiple of 500")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("many_records.json"))
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--ask", nargs="*", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.ask:
        print(json.dumps(asked(given.ask)))
        return
    from gapscope.base.environment import environment

    fill(given.folder, given.networks)
    result: dict[str, Any] = (
        json.loads(given.out.read_text())
        if given.out.exists() and not given.again
        else {"questions": {}}
    )
    places = {"GRID": str(given.folder.with_suffix(".toml")), "POOL": str(given.folder)}
    for name, words in QUESTIONS.items():
        if name in result["questions"]:
            continue
        if "first" in name:
            (given.folder / "index.json").unlink(missing_ok=True)
        command = [
            sys.executable,
            __file__,
            "--folder",
            ".",
            "--ask",
            *(places.get(word, word) for word in words),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        result["questions"][name] = json.loads(done.stdout.strip().splitlines()[-1])
        print(name, result["questions"][name], flush=True)
        size = (
            (given.folder / "index.json").stat().st_size
            if (given.folder / "index.json").exists()
            else 0
        )
        result |= {
            "title": "many records", "networks": given.networks, "index_megabytes": size / 1e6,
            "load": os.getloadavg()[0], "date": datetime.now(UTC).date().isoformat(), "environment": environment(),
        }  # fmt: skip
        given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
