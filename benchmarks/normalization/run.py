"""Normalization layers beside torch's BatchNorm2d: forward and backward, as ratios.

    python benchmarks/normalization/run.py --rounds 15 --out layers.json
    python benchmarks/normalization/run.py --smallest

All layers run in one process, interleaved: every round times each layer once on each shape; reported are medians and
their ratio to BatchNorm2d on the same shape. The clock is CPU time of one thread, on CUDA wall time between
synchronizations. Gradients by the input, gamma and beta are computed; running statistics are updated.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from gapscope.base.environment import environment
from gapscope.batch_norm import (
    GhostBatchNorm2d,
    MeanOnlyBatchNorm2d,
    PopulationNorm2d,
    VarianceOnlyBatchNorm2d,
)

SHAPES = ((128, 64, 32, 32), (128, 128, 16, 16), (128, 256, 8, 8), (128, 512, 4, 4))
"""Mini-batches of 128 at the four widths of a ResNet-18 for 32 x 32 images."""


def candidates(channels: int) -> dict[str, nn.Module]:
    return {
        "BatchNorm2d": nn.BatchNorm2d(channels),
        "PopulationNorm2d": PopulationNorm2d(channels),
        "PopulationNorm2d, detached": PopulationNorm2d(channels, detach=True),
        "MeanOnlyBatchNorm2d": MeanOnlyBatchNorm2d(channels),
        "VarianceOnlyBatchNorm2d": VarianceOnlyBatchNorm2d(channels),
        "VarianceOnlyBatchNorm2d, rms": VarianceOnlyBatchNorm2d(channels, rms=True),
        "GhostBatchNorm2d, parts of 32": GhostBatchNorm2d(channels, 32),
    }


def clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def timed(layer: nn.Module, x: Tensor, gradient: Tensor) -> float:
    """Seconds of one forward and backward pass."""
    inputs = x.detach().requires_grad_()
    layer.zero_grad()
    start = clock(x.device)
    layer(inputs).backward(gradient)
    return clock(x.device) - start


def run(
    shapes: tuple[tuple[int, ...], ...], rounds: int, device: torch.device, channels_last: bool
) -> dict[str, object]:
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    results: dict[str, object] = {}
    for shape in shapes:
        x, gradient = (
            torch.randn(shape, device=device).to(memory_format=memory_format) for _ in range(2)
        )
        layers = {name: layer.to(device).train() for name, layer in candidates(shape[1]).items()}
        seconds: dict[str, list[float]] = {name: [] for name in layers}
        for number in range(rounds + 2):
            for name, layer in layers.items():
                taken = timed(layer, x, gradient)
                if number >= 2:
                    seconds[name].append(taken)
        medians = {name: statistics.median(values) for name, values in seconds.items()}
        reference = medians["BatchNorm2d"]
        results["x".join(map(str, shape))] = {
            name: {"milliseconds": round(1e3 * value, 4), "ratio": round(value / reference, 3)}
            for name, value in medians.items()
        }
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument(
        "--smallest", action="store_true", help="one small shape and one round: does it run?"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    shapes, rounds = (((16, 8, 8, 8),), 1) if options.smallest else (SHAPES, options.rounds)
    device = torch.device(options.device)
    report = {
        "environment": environment(str(device)),
        "rounds": rounds,
        "channels_last": options.channels_last,
        "forward_and_backward": run(shapes, rounds, device, options.channels_last),
    }
    text = json.dumps(report, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
