"""Cost of a forecast in CPU seconds, one thread.

    python benchmarks/forecast/run.py --out benchmarks/results/forecast.json

Each row is one call of `forecast_accuracy`. `--largest` adds LeNet-5 on 50,000 images of MNIST (minutes).
`--combinations` compares leave-one-out accuracies of the NTK of all outputs and of four combinations of them. Rows that
the file holds already are kept unless `--again` is given.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import gapscope as gs


def _table() -> tuple[None, Any]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(600, 20, generator=generator)
    return None, (x, (x[:, 0] + torch.randn(600, generator=generator) > 0).long())


def _images(name: str, n: int, network: str | None = None, **options: Any) -> tuple[Any, Any]:
    data = gs.load_dataset(name)
    train = data.train.subset(torch.arange(n))
    if network is None:
        return None, train
    shape = tuple(train.inputs.shape[1:])
    return gs.build_network(
        network,
        input_shape=shape,
        n_outputs=data.n_outputs,
        generator=torch.Generator().manual_seed(0),
        **options,
    ), train


ROWS: dict[str, tuple[float, Callable[[], tuple[Any, Any]]]] = {
    "rows without a network, 600 rows of a table": (1, _table),
    "rows without a network, 2,000 CIFAR-10 images": (5, lambda: _images("cifar10", 2000)),
    "CNN with batch norm, 1,200 CIFAR-10 images": (
        15, lambda: _images("cifar10", 1200, "small_cnn", width_multiplier=0.25, batch_norm=True)),
    "ResNet-18 of an eighth of the width, 600 CIFAR-10 images": (
        30, lambda: _images("cifar10", 600, "resnet18", width_multiplier=0.125)),
}  # fmt: skip
LARGEST = {"LeNet-5, 50,000 MNIST images": (300.0, lambda: _images("mnist", 50000, "lenet5"))}
COMBINED: dict[str, Callable[[], tuple[Any, Any]]] = {
    "LeNet-5, 500 MNIST images": lambda: _images("mnist", 500, "lenet5"),
    "LeNet-5, 2,000 MNIST images": lambda: _images("mnist", 2000, "lenet5"),
    "fully connected, 2,000 Fashion-MNIST images": lambda: _images(
        "fashion_mnist", 2000, "fully_connected", n_hidden=2, width=128),
    "small CNN, 2,000 Fashion-MNIST images": lambda: _images(
        "fashion_mnist", 2000, "small_cnn", width_multiplier=0.25),
    "CNN with batch norm, 2,000 CIFAR-10 images": lambda: _images(
        "cifar10", 2000, "small_cnn", width_multiplier=0.25, batch_norm=True),
    "ResNet-18 of an eighth of the width, 600 CIFAR-10 images": lambda: _images(
        "cifar10", 600, "resnet18", width_multiplier=0.125),
}  # fmt: skip


def _compare_combinations(build: Callable[[], tuple[Any, Any]]) -> dict[str, Any]:
    network, data = build()
    row: dict[str, Any] = {}
    for name, k in (("all outputs", None), ("four combinations", 4)):
        start = time.process_time()
        result = gs.functional.kernel_leave_one_out(
            network, data.inputs, data.targets, combinations=k
        )
        row |= {
            f"{name}, accuracy": result.accuracy,
            f"{name}, CPU seconds": time.process_time() - start,
        }
    return row


def main() -> None:
    """Measure what the file does not hold."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--largest", action="store_true")
    parser.add_argument("--combinations", action="store_true")
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = (
        json.loads(options.out.read_text())
        if options.out.exists() and not options.again
        else {"rows": []}
    )
    known = {row["work"] for row in result["rows"]}
    for work, (aim, build) in (ROWS | (LARGEST if options.largest else {})).items():
        if work in known:
            continue
        network, data = build()
        start = time.process_time()
        forecast = gs.forecast_accuracy(network, data)
        result["rows"].append({
            "work": work, "cpu_seconds": time.process_time() - start, "aim": aim, "forecast": forecast.score,
            "parameters": 0 if network is None else sum(p.numel() for p in network.parameters()),
            "peak_megabytes_of_the_process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "day": datetime.now(UTC).date().isoformat(), "torch": torch.__version__,
        })  # fmt: skip
        options.out.write_text(json.dumps(result, indent=1) + "\n")
        print(work, f"{result['rows'][-1]['cpu_seconds']:.1f} s, aim {aim:g} s", flush=True)
    compared = {row["work"] for row in result.setdefault("combinations", [])}
    for work, build in COMBINED.items() if options.combinations else ():
        if work not in compared:
            result["combinations"].append({"work": work, **_compare_combinations(build)})
            options.out.write_text(json.dumps(result, indent=1) + "\n")
            print(result["combinations"][-1], flush=True)


if __name__ == "__main__":
    main()
