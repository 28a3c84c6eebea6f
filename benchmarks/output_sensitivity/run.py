"""Output sensitivity of CIFAR-sized networks beside plain forward passes and the exact input Jacobian.

    python benchmarks/output_sensitivity/run.py --samples 2000 --out sensitivity.json

Per network: two forward passes (what S must cost at least), S with one draw, and the exact Jacobian norm of raw outputs
and of probabilities on fewer samples, scaled to the same number. All candidates run in one process, interleaved,
`--rounds` times; medians are reported. On a CPU the clock is CPU time of one thread, on CUDA wall time between
synchronizations. Networks are untrained; inputs are uniform on [0, 1].
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gapscope.base.environment import environment
from gapscope.inspection.outputs import network_outputs
from gapscope.measures.input_jacobian_norm import input_jacobian_norm
from gapscope.measures.output_sensitivity import output_sensitivity
from gapscope.networks import build_network

NETWORKS = ("fully_connected", "vgg13", "vgg16", "resnet18", "resnet34")
PAPER = {"J over S before softmax": 1.165 / 0.085, "J over S after softmax": 1.166 / 0.086}


def clock(device: str) -> Callable[[], float]:
    """Return the clock for this device."""
    if device == "cpu":
        return time.process_time

    def synchronized() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return synchronized


def candidates(
    network: nn.Module, x: Tensor, few: Tensor, chunk_size: int
) -> dict[str, Callable[[], Any]]:
    """Name -> what is timed; `few` are the samples of the Jacobians."""
    return {
        "two forward passes": lambda: [
            network_outputs(network, x, chunk_size=chunk_size) for _ in range(2)
        ],
        "S": lambda: output_sensitivity(network, x, chunk_size=chunk_size),
        "S of probabilities": lambda: output_sensitivity(
            network, x, space="probabilities", chunk_size=chunk_size
        ),
        "exact J": lambda: input_jacobian_norm(network, few),
        "exact J of probabilities": lambda: input_jacobian_norm(
            network, few, space="probabilities"
        ),
    }


def seconds_of(name: str, options: argparse.Namespace) -> dict[str, float]:
    """Median seconds of every candidate for `options.samples` inputs of one network."""
    wide = {} if name == "fully_connected" else {"width_multiplier": options.width}
    network = build_network(
        name, input_shape=(3, 32, 32), n_outputs=10, generator=torch.Generator().manual_seed(0), **wide
    ).to(options.device).eval()  # fmt: skip
    x = torch.rand(options.samples, 3, 32, 32, generator=torch.Generator().manual_seed(1)).to(
        options.device
    )
    few = x[: options.jacobian_samples]
    timed = candidates(network, x, few, options.chunk_size)
    now, times = clock(options.device), {key: [] for key in timed}
    for round_number in range(options.rounds + 1):
        for key, function in timed.items():
            start = now()
            function()
            scale = len(x) / len(few) if "J" in key else 1.0
            if round_number:  # the first round warms up
                times[key].append((now() - start) * scale)
    return {key: statistics.median(values) for key, values in times.items()}


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Time every network and return seconds and ratios, with the environment."""
    result = {}
    for name in options.networks:
        seconds = seconds_of(name, options)
        ratios = {
            "S over two forward passes": seconds["S"] / seconds["two forward passes"],
            "J over S before softmax": seconds["exact J"] / seconds["S"],
            "J over S after softmax": seconds["exact J of probabilities"]
            / seconds["S of probabilities"],
        }
        result[name] = {"seconds": seconds, "ratios": ratios}
        print(
            f"{name:16}" + "".join(f"  {key} {value:.2f}" for key, value in ratios.items()),
            flush=True,
        )
    return {
        "settings": vars(options) | {"out": str(options.out)},
        "environment": environment(options.device),
        "paper": PAPER,
        "networks": result,
    }


def main() -> None:
    """Read the options, compare, print a line per network and write the JSON file where one is named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--jacobian-samples", type=int, default=128)
    parser.add_argument("--chunk-size", type=int, default=256)
    parser.add_argument(
        "--width", type=float, default=1.0, help="width multiplier of the convolutional networks"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = compare(options)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
