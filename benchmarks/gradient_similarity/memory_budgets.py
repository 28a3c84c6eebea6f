"""Memory against time of the full kernel, by `max_bytes`, each in its own process.

    python benchmarks/gradient_similarity/memory_budgets.py --out benchmarks/results/memory_budgets_resnet20.json

Peak memory in MB above that of the loaded network, which has computed the kernel of two samples; CPU seconds of one
thread, the smaller of two calls.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import torch
from run import peak_kilobytes

from gapscope.base.environment import environment
from gapscope.functional import empirical_ntk
from networks import batch, make

SAMPLES = 32
BUDGETS = (2048, 1024, 512, 256, 128)  # MiB; the first is the largest default
CALLS = 2


def measure(name: str, budget: int) -> dict[str, float]:
    """Return the peak memory and the time of one budget in MiB."""
    torch.set_num_threads(1)
    network, (x, _) = make(name, "cpu"), batch(name, SAMPLES, "cpu")
    empirical_ntk(network, x[:2])
    before = peak_kilobytes()
    seconds: list[float] = []
    for _ in range(CALLS):
        start = time.process_time()
        empirical_ntk(network, x, max_bytes=budget * 2**20)
        seconds.append(time.process_time() - start)
    return {"megabytes": (peak_kilobytes() - before) / 1e3, "seconds": min(seconds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--network", default="resnet20")
    parser.add_argument("--budget", type=int, help="measure this budget in MiB, in this process")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.budget is not None:
        print(json.dumps(measure(options.network, options.budget)))
        return
    rows: dict[str, dict[str, float]] = {}
    for budget in BUDGETS:
        command = [sys.executable, __file__, "--network", options.network, "--budget", str(budget)]
        rows[str(budget)] = json.loads(
            subprocess.run(command, check=True, capture_output=True, text=True).stdout
        )
        print(budget, rows[str(budget)], flush=True)
    if options.out:
        title = "full kernel, resnet20, 32 samples, by max_bytes in MiB"
        content = {"title": title, "budgets": rows, "environment": environment("cpu")}
        options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
