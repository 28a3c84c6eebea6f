"""Kernels and traces with products of matrices by oneDNN and by torch's MKL, in one process.

    python benchmarks/gradient_similarity/onednn.py --out benchmarks/results/onednn.json

CPU seconds of one thread, interleaved, medians. MKL does not use AVX-512 on processors of AMD; elsewhere the two are
expected to be equal.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from gapscope.base.environment import environment
from gapscope.functional import empirical_ntk, ntk_trace
from gapscope.gradients import products
from networks import batch, make


def candidates() -> dict[str, Callable[[], object]]:
    """Return what is timed, by name."""
    result: dict[str, Callable[[], object]] = {}
    for name, n in (("fc", 32), ("fc", 256), ("lenet", 32), ("resnet20", 8), ("vgg16", 2)):
        network, (x, _) = make(name, "cpu"), batch(name, n, "cpu")
        result[f"full kernel, {name}, {n} samples"] = lambda network=network, x=x: empirical_ntk(
            network, x
        )
    layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
    transformer = nn.Sequential(layer, nn.Flatten(), nn.Linear(128 * 32, 10))
    tokens = torch.randn(16, 32, 128, generator=torch.Generator().manual_seed(0))
    result["exact trace, transformer layer (128), 16 samples"] = lambda: ntk_trace(
        transformer, tokens
    )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="per candidate")
    parser.add_argument("--only", default="", help="what the names must contain")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    linear = products._linear()  # pyright: ignore[reportPrivateUsage]
    products._is_faster = lambda: True  # pyright: ignore[reportPrivateUsage,reportAttributeAccessIssue]
    rows: dict[str, dict[str, float]] = {}
    for name, run in candidates().items():
        if options.only not in name:
            continue
        times: dict[str, list[float]] = {"oneDNN": [], "MKL": []}
        end = time.process_time() + options.seconds
        while time.process_time() < end or len(times["MKL"]) < 8:
            for library, used in (("oneDNN", linear), ("MKL", None)):
                products._linear = lambda used=used: used  # pyright: ignore[reportPrivateUsage]
                start = time.process_time()
                run()
                times[library].append(time.process_time() - start)
        medians = {library: statistics.median(seconds[1:]) for library, seconds in times.items()}
        rows[name] = medians | {"speedup": medians["MKL"] / medians["oneDNN"]}
        print(
            f"{name:50s} {1e3 * medians['oneDNN']:9.2f} ms, by MKL {rows[name]['speedup']:.2f} times as long",
            flush=True,
        )
    options.out.write_text(
        json.dumps({"products": rows, "environment": environment("cpu")}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
