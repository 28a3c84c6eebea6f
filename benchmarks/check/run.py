"""CPU seconds of `gapscope.check`: a table of 30,000 rows, and a small CNN with 2,000 pictures.

    python benchmarks/check/run.py --out check.json

Every cell is a process of its own, with one thread; networks are trained before the clock starts. Pictures: CIFAR-10.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.environment import environment
from gapscope.base.files import to_json

Data = tuple[Tensor, Tensor]
N_ROWS, N_COLUMNS, N_CLASSES, N_PICTURES = 30_000, 10, 5, 2000
# The bars that were set for these two.
BARS = {"table of 30,000 rows": 30.0, "small CNN, 2,000 pictures": 60.0}


def table() -> tuple[nn.Module, Data, int]:
    """Four clusters per class, 8 % of the labels at random, an MLP and its epochs."""
    generator = torch.Generator().manual_seed(0)
    centres = 1.2 * torch.randn(4 * N_CLASSES, N_COLUMNS, generator=generator)
    labels = torch.randint(0, N_CLASSES, (N_ROWS,), generator=generator)
    clusters = 4 * labels + torch.randint(0, 4, (N_ROWS,), generator=generator)
    x = centres[clusters] + torch.randn(N_ROWS, N_COLUMNS, generator=generator)
    is_wrong = torch.rand(N_ROWS, generator=generator) < 0.08
    labels = torch.where(
        is_wrong, torch.randint(0, N_CLASSES, (N_ROWS,), generator=generator), labels
    )
    layers = [
        nn.Linear(N_COLUMNS, 64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, N_CLASSES),
    ]
    return nn.Sequential(*layers), (x, labels), 3


def pictures() -> tuple[nn.Module, Data, int]:
    """CIFAR-10, a CNN of two convolutions, and its epochs."""
    train = gs.load_dataset("cifar10").train.subset(torch.arange(N_PICTURES))
    network = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2048, 10),
    )  # fmt: skip
    return network, (train.inputs, train.y), 8


CELLS: dict[str, Callable[[], tuple[nn.Module, Data, int]]] = dict(
    zip(BARS, (table, pictures), strict=True)
)


def measure(name: str) -> dict[str, float]:
    """Train the network of a cell, check it, and return CPU seconds and the number of checks that answered."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network, (x, y), epochs = CELLS[name]()
    initial = {key: value.clone() for key, value in network.state_dict().items()}
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()
            optimizer.step()
    start = time.process_time()
    result = gs.check(network, (x, y), initial_state=initial)
    seconds = time.process_time() - start
    return {
        "cpu_seconds": seconds,
        "answered": len(result.findings) + len(result.fine),
        "bar": BARS[name],
    }


def main() -> None:
    """Measure all cells, or one in this process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--cell", choices=CELLS)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if options.cell is not None:
        print(json.dumps(measure(options.cell)))
        return
    cells: dict[str, list[dict[str, float]]] = {name: [] for name in CELLS}
    for name in [name for _ in range(options.repeats) for name in CELLS]:
        command = [sys.executable, __file__, "--cell", name]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        cells[name].append(json.loads(done.stdout.splitlines()[-1]))
        print(name, cells[name][-1])
    if options.out is not None:
        options.out.write_text(
            to_json({"environment": environment(), "cells": cells}), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
