"""Arithmetic floor of the traced kernel: its floating-point operations at the speed of the machine's matrix products.

    python benchmarks/gradient_similarity/floor.py --out benchmarks/results/kernel_floor.json

Operations are those that PyTorch counts in one call (`FlopCounterMode`: convolutions and matrix products, forward and
backward). CPU seconds of one thread, medians of nine calls.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

import gapscope as gs
from gapscope.base.environment import environment
from gapscope.base.files import to_json
from gapscope.functional import empirical_ntk

ROUNDS, SIDE = 9, 1024
CASES: dict[str, tuple[str, tuple[int, ...], dict[str, Any], int]] = {
    "LeNet-5": ("lenet5", (1, 28, 28), {}, 128),
    "small CNN with batch norm": (
        "small_cnn",
        (3, 32, 32),
        {"width_multiplier": 0.25, "batch_norm": True},
        64,
    ),
    "ResNet-18 of quarter width": ("resnet18", (3, 32, 32), {"width_multiplier": 0.25}, 32),
}


def cpu_seconds(call: Callable[[], Any]) -> float:
    """Median CPU seconds of a call."""
    call()
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return statistics.median(times)


def operations(call: Callable[[], Any]) -> int:
    """Number of floating-point operations of a call."""
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


def measure_case(
    name: str, shape: tuple[int, ...], options: dict[str, Any], n: int, speed: float
) -> dict[str, Any]:
    """Time, counted operations and their ratio for one network."""
    network = gs.build_network(name, input_shape=shape, n_outputs=10, **options).eval()
    x = torch.randn(n, *shape)

    def kernel() -> torch.Tensor:
        return empirical_ntk(network, x, outputs="traced")

    seconds, count = cpu_seconds(kernel), operations(kernel)
    return {
        "samples": n,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "seconds": seconds,
        "gigaflop": count / 1e9,
        "floor_seconds": count / speed,
        "ratio": seconds * speed / count,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    path = parser.parse_args().out
    torch.set_num_threads(1)
    torch.manual_seed(0)
    left, right = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
    speed = 2 * SIDE**3 / cpu_seconds(lambda: left @ right)
    rows = {name: measure_case(*case, speed) for name, case in CASES.items()}
    path.write_text(
        to_json(
            {"environment": environment(), "matrix_gigaflop_per_second": speed / 1e9, "rows": rows}
        )
    )


if __name__ == "__main__":
    main()
