"""Cumulative unit ablation of VGG-16's last convolution (512 units): gapscope beside a naive and a cached loop.

    python benchmarks/unit_ablation/run.py --tail deep --samples 32 --density 0.25 --out vgg16_deep.json

All candidates run in one process, interleaved, `--rounds` times; medians are reported as ratios to gapscope's. On a CPU
the clock is CPU time of one thread, on CUDA wall time between synchronizations. The naive loop is timed for a few n and
the cached loop for some more, both scaled to all 2 (M + 1) steps; accuracies are compared at all n that were run. The
network is untrained; the fraction of pooled units that are not zero (what skipping lives on) is set by the bias of the
last convolution, so that trained networks of the same density take the same time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from loops import cached, naive
from torch import Tensor, nn

from gapscope.base.environment import environment
from gapscope.measures.unit_sparsity import unit_sparsity
from gapscope.networks import build_network

LAYER = "block5_conv3_relu"


def sparse_vgg(
    tail: str, density: float, width: float, x: Tensor
) -> tuple[nn.Sequential, nn.Sequential, nn.Sequential]:
    """VGG-16 without batch norm whose pooled units are active with this density, with its body and tail."""
    network = build_network(
        "vgg16",
        input_shape=(3, 32, 32),
        n_outputs=100,
        initialization="he_normal",
        generator=torch.Generator().manual_seed(0),
        batch_norm=False,
        head="paper" if tail == "deep" else "linear",
        width_multiplier=width,
        **({"head_width": round(4096 * width)} if tail == "deep" else {}),
    ).eval()
    assert isinstance(network, nn.Sequential)
    network.to(x.device)
    names = list(network._modules)
    cut = names.index(LAYER) + 1
    with torch.no_grad():
        before = network[: cut - 1](x)
        threshold = torch.quantile(before.flatten(2).amax(2), 1 - density, dim=0)
        bias: Any = network[cut - 2].bias
        bias.sub_(threshold)
    body, rest = list(network.named_children())[:cut], list(network.named_children())[cut:]
    return network, nn.Sequential(OrderedDict(body)), nn.Sequential(OrderedDict(rest))


def clock(device: str) -> Callable[[], float]:
    """Return the clock for this device."""
    if device == "cpu":
        return time.process_time

    def synchronized() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return synchronized


def timed(now: Callable[[], float], function: Callable[[], Tensor]) -> tuple[float, Tensor]:
    start = now()
    result = function()
    return now() - start, result


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Run all candidates, check that their accuracies are equal, and return times and ratios."""
    x = torch.randn(options.samples, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    x = (0.8 * x + torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(2))).to(
        options.device
    )
    network, body, tail = sparse_vgg(options.tail, options.density, options.width, x)
    with torch.no_grad():
        label = int(network(x).argmax(1).mode().values)
    y = torch.full((options.samples,), label)
    units = unit_sparsity(network, x, y, chunk_size=options.chunk_size).n_units
    some = range(0, units + 1, max(1, units // options.naive_steps))
    more = range(0, units + 1, max(1, units // options.cached_steps))
    candidates: dict[str, tuple[Callable[[], Tensor], range]] = {
        "gapscope": (lambda: _curves(network, x, y, options.chunk_size), range(units + 1)),
        "cached loop": (lambda: cached(body, tail, x, label, more), more),
        "naive loop": (lambda: naive(body, tail, x, label, some), some),
    }
    now, times, results = clock(options.device), {name: [] for name in candidates}, {}
    for _ in range(options.rounds):
        for name, (function, steps) in candidates.items():
            seconds, results[name] = timed(now, function)
            times[name].append(seconds * (units + 1) / len(steps))
    ours = results["gapscope"]
    median = {name: statistics.median(values) for name, values in times.items()}
    return {
        "settings": vars(options) | {"out": str(options.out)},
        "environment": environment(options.device),
        "units": units,
        "seconds": median,
        "all_seconds": times,
        "ratio_to_gapscope": {
            name: seconds / median["gapscope"] for name, seconds in median.items()
        },
        "identical_accuracies": {
            name: torch.equal(ours[:, list(candidates[name][1])], results[name].cpu())
            for name in ("cached loop", "naive loop")
        },
        "curve": dict(
            islice(((n, ours[0, n].item()) for n in range(0, units + 1, max(1, units // 8))), 9)
        ),
    }


def _curves(network: nn.Module, x: Tensor, y: Tensor, chunk_size: int) -> Tensor:
    result = unit_sparsity(network, x, y, chunk_size=chunk_size)
    return torch.stack([result.curves[0], result.reversed_curves[0]])


def main() -> None:
    """Read the options, compare, print a line and write the JSON file where one is named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tail", choices=("deep", "linear"), default="deep")
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--density", type=float, default=0.25)
    parser.add_argument(
        "--width",
        type=float,
        default=1.0,
        help="width multiplier; below 1 only to see the script run",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--naive-steps", type=int, default=6)
    parser.add_argument("--cached-steps", type=int, default=32)
    parser.add_argument("--chunk-size", type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = compare(options)
    for name, seconds in result["seconds"].items():
        same = result["identical_accuracies"].get(name, "")
        print(
            f"{name:12} {seconds:9.3f} s  x{result['ratio_to_gapscope'][name]:<8.2f} identical accuracies: {same}"
        )
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
