"""Kernel and trace of a fully connected network beside the same products written by hand.

    python benchmarks/gradient_similarity/by_hand.py --out benchmarks/results/by_hand_fc.json

784-512-512-10 with 32 samples; CPU seconds of one thread, interleaved, medians. The products know the layers, check
nothing and restore nothing: they are the floor of every general implementation.
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
from gapscope.functional import empirical_ntk, ntk_trace
from networks import OUTPUTS, batch, make


def _inputs_and_gradients(network: nn.Sequential, x: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Inputs [n, k] of each linear layer, and derivatives [C, n, o] of all outputs by its outputs."""
    layers = [module for module in network if isinstance(module, nn.Linear)]
    inputs, masks = [x.flatten(1)], []
    for layer in layers[:-1]:
        h = layer(inputs[-1])
        masks.append(h > 0)
        inputs.append(h.relu())
    gradient = torch.eye(OUTPUTS)[:, None].expand(OUTPUTS, len(x), OUTPUTS)
    gradients = [gradient]
    for layer, mask in zip(reversed(layers[1:]), reversed(masks), strict=True):
        gradient = (gradient.reshape(-1, gradient.shape[-1]) @ layer.weight).view(
            OUTPUTS, len(x), -1
        ) * mask
        gradients.append(gradient)
    return list(zip(inputs, reversed(gradients), strict=True))


@torch.no_grad()
def full_kernel(network: nn.Sequential, x: Tensor) -> Tensor:
    """The kernel [n, C, n, C]."""
    n = len(x)
    kernel = torch.zeros(OUTPUTS, n, OUTPUTS, n)
    for a, g in _inputs_and_gradients(network, x):
        rows = g.reshape(-1, g.shape[-1])
        kernel += (rows @ rows.T).view(kernel.shape).mul_((a @ a.T + 1)[:, None])
    return kernel.permute(1, 0, 3, 2)


@torch.no_grad()
def traced_kernel(network: nn.Sequential, x: Tensor) -> Tensor:
    """The kernel [n, n], summed over outputs."""
    kernel = torch.zeros(len(x), len(x))
    for a, g in _inputs_and_gradients(network, x):
        rows = g.transpose(0, 1).reshape(len(x), -1)
        kernel += (rows @ rows.T) * (a @ a.T + 1)
    return kernel


@torch.no_grad()
def trace(network: nn.Sequential, x: Tensor) -> Tensor:
    """The trace of the kernel."""
    parts = [
        ((a.square().sum(1) + 1) * g.square().sum((0, 2))).sum()
        for a, g in _inputs_and_gradients(network, x)
    ]
    return torch.stack(parts).sum()


def measure(rounds: int) -> dict[str, Any]:
    """Return the medians of all candidates, and the largest difference of each pair."""
    network, (x, _) = make("fc", "cpu"), batch("fc", 32, "cpu")
    pairs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "full kernel": (lambda: full_kernel(network, x), lambda: empirical_ntk(network, x)),
        "traced kernel": (
            lambda: traced_kernel(network, x),
            lambda: empirical_ntk(network, x, outputs="traced"),
        ),
        "exact trace": (
            lambda: trace(network, x),
            lambda: torch.tensor(float(ntk_trace(network, x))),
        ),
    }
    candidates: dict[str, Callable[[], Any]] = {}
    differences = {}
    for name, (by_hand, ours) in pairs.items():
        expected, found = by_hand(), ours()
        differences[name] = float((expected - found).abs().max() / expected.abs().max())
        candidates |= {f"by hand {name}": by_hand, f"gapscope {name}": ours}
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, run in candidates.items():
            start = time.process_time()
            run()
            times[name].append(time.process_time() - start)
    rows = {name: {"seconds": statistics.median(seconds)} for name, seconds in times.items()}
    ratios = {
        name: rows[f"gapscope {name}"]["seconds"] / rows[f"by hand {name}"]["seconds"]
        for name in pairs
    }
    title = "products by hand, fc, 32 samples, cpu"
    return {
        "title": title,
        "reference": "by hand full kernel",
        "rows": rows,
        "ratios": ratios,
        "differences": differences,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = measure(options.rounds)
    print(json.dumps(result["ratios"], indent=1))
    options.out.write_text(
        json.dumps(result | {"environment": environment("cpu")}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
