"""Whether activations computed again save memory: a residual network of 25 convolutions, with checkpoints and without.

    python benchmarks/large_networks/recomputation.py --out benchmarks/results/recomputation.json

Each cell runs in a process of its own, one thread, on 8 samples: seconds are of the processor, memory is the peak of
the process above that of the network and its inputs. "one sample at a time" is a loop over the samples whose gradients
add up, as in gradient accumulation.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from run import peak

SAMPLES, CHANNELS, SIDE, BLOCKS = 8, 32, 64, 12
WORKS = ("forward and backward pass", "trace, class probe", "training step with the trace penalty")
WAYS = ("as it is", "activations computed again", "one sample at a time")


def network_and_inputs(again: bool) -> tuple[Any, Any]:
    """The network, whose blocks are checkpointed if `again`, and inputs for it."""
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = (
                nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1) for _ in range(2)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.second(torch.relu(self.first(torch.relu(x))))

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.head = nn.Conv2d(3, CHANNELS, 3, padding=1), nn.Linear(CHANNELS, 10)
            self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False) if again else block(x)
            return self.head(x.mean((2, 3)))

    torch.manual_seed(0)
    torch.set_num_threads(1)
    return Network(), torch.randn(SAMPLES, 3, SIDE, SIDE)


def worked(work: str, network: Any, x: Any) -> float:
    """Do one piece of work; the trace, the penalty or the loss."""
    import torch

    from gapscope import GradientSimilarityPenalty
    from gapscope.functional import ntk_trace

    y = torch.arange(len(x))
    if work == WORKS[0]:
        loss = torch.nn.functional.cross_entropy(network(x), y)
        loss.backward()
        return float(loss.detach())
    if work == WORKS[1]:
        generator = torch.Generator().manual_seed(0)
        return float(ntk_trace(network, x, method="probe", generator=generator))
    outputs, value = GradientSimilarityPenalty(0.001).forward_with_penalty(network, x, y)
    (torch.nn.functional.cross_entropy(outputs, y) + value).backward()
    return float(value.detach())


def cell(work: str, way: str) -> dict[str, float]:
    """Do the work twice in this process; the second time counts, for the first one also looks at the network once."""
    network, x = network_and_inputs(way == WAYS[1])
    parts = [x[i : i + 1] for i in range(len(x))] if way == WAYS[2] else [x]
    before, seconds, values = peak(), 0.0, [0.0]
    for _ in range(2):
        started = time.process_time()
        values = [worked(work, network, part) for part in parts]
        seconds = time.process_time() - started
    return {"value": sum(values) / len(values), "seconds": seconds, "megabytes": peak() - before}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("recomputation.json"))
    parser.add_argument("--cell", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        print(json.dumps(cell(*arguments.cell)))
        return
    from gapscope.base.environment import environment

    cells: dict[str, dict[str, Any]] = {}
    for work in WORKS:
        for way in WAYS:
            done = subprocess.run(
                [sys.executable, __file__, "--cell", work, way],
                capture_output=True,
                text=True,
                check=True,
            )
            cells.setdefault(work, {})[way] = json.loads(done.stdout.strip().splitlines()[-1])
            print(work, "|", way, cells[work][way], flush=True)
    result = {"title": "activations computed again", "samples": SAMPLES, "cells": cells,
             "date": datetime.now(UTC).date().isoformat(), "environment": environment()}  # fmt: skip
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
