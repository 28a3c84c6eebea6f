"""What `gs.measure(network, data)` costs by architecture: CPU seconds, peak memory, and what the budget reduced.

    python benchmarks/measure_cost/run.py --out benchmarks/results/measure_cost.json
    python benchmarks/measure_cost/run.py --smallest

Every network is trained a little and measured on 2,000 samples by one thread in a process of its own, once with the
default budget and, where that may take at most some minutes, once without any. The peak is the largest resident memory
of the process less what it was before measuring began. The budget counts wall time, so that more is left out on a busy
machine than on an idle one; `--busy` lets it count the CPU time of the process instead, which is what an idle machine
would show. MNIST, CIFAR-10 and California housing must be there (`gapscope
data list`); the token ids are drawn, their label is whether the first is even.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import gapscope as gs
from gapscope.base.environment import environment

N, STEPS, BATCH = 2000, 100, 32
Made = tuple[nn.Module, Any]


def fitted(network: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
    """Train a few steps, so that no output is arbitrary."""
    loss = functional.mse_loss if y.is_floating_point() else functional.cross_entropy
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    for step in range(STEPS):
        part = torch.arange(BATCH * step, BATCH * (step + 1)) % len(x)
        optimizer.zero_grad()
        outputs = network(x[part])
        loss(getattr(outputs, "logits", outputs), y[part]).backward()
        optimizer.step()
    return network


def of_images(name: str, data: str, **options: Any) -> Callable[[int], Made]:
    def make(n: int) -> Made:
        problem = gs.load_dataset(data)
        samples = problem.train.subset(torch.arange(n))
        assert samples.targets is not None
        network = gs.build_network(
            name, input_shape=problem.input_shape, n_outputs=problem.n_outputs, **options
        )
        return fitted(network, samples.inputs, samples.targets), samples

    return make


def bert(n: int) -> Made:
    transformers: Any = importlib.import_module("transformers")

    sizes = {
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 512,
    }
    config = transformers.BertConfig(vocab_size=1000, num_labels=2, **sizes)
    ids = torch.randint(1, 1000, (n, 64))
    labels = ids[:, 0] % 2
    network = fitted(transformers.BertForSequenceClassification(config), ids, labels)
    return network, {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


class Recurrent(nn.Module):
    """An LSTM over the rows of an image, read at its last step."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(28, 128, batch_first=True), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.head(self.lstm(x[:, 0])[0][:, -1])


def lstm(n: int) -> Made:
    samples = gs.load_dataset("mnist").train.subset(torch.arange(n))
    assert samples.targets is not None
    return fitted(Recurrent(), samples.inputs, samples.targets), samples


NETWORKS: dict[str, tuple[Callable[[int], Made], str]] = {
    "fully connected, 3 x 128": (
        of_images("fully_connected", "california_housing", width=128, n_hidden=3),
        "8 columns, regression",
    ),
    "LeNet-5": (of_images("lenet5", "mnist"), "1 x 28 x 28, 10 classes"),
    "LSTM, 128": (lstm, "28 steps of 28, 10 classes"),
    "BERT, 4 layers of 128": (bert, "64 tokens, 2 classes"),
    "ResNet-18": (of_images("resnet18", "cifar10"), "3 x 32 x 32, 10 classes"),
}
EXACT = tuple(name for name in NETWORKS if name != "ResNet-18")


def measured(name: str, n: int, exact: bool, busy: bool) -> dict[str, Any]:
    """Measure one network in this process, and return what it cost."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if busy:
        time.perf_counter = time.process_time
    network, data = NETWORKS[name][0](n)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cpu, wall = time.process_time(), time.monotonic()
    readings = gs.measure(network, data, time_budget=None if exact else "auto", progress=False)
    cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "cpu_seconds": round(cpu, 2),
        "wall_seconds": round(wall, 2),
        "peak_gb": round(1024 * peak / 1e9, 3),
        "peak_above_start_gb": round(1024 * (peak - before) / 1e9, 3),
        "seconds": {reading.measure: round(reading.seconds, 2) for reading in readings},
        "reduced": {
            item.measure: item.note
            for item in readings
            if item.standard_error is not None and item.note
        },
        "unmeasured": readings.unmeasured,
    }


def in_a_process(name: str, n: int, exact: bool, busy: bool) -> dict[str, Any]:
    # started again, not forked: a fork begins with the peak of its parent
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(measured, name, n, exact, busy).result()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", nargs="*", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument(
        "--smallest", action="store_true", help="few samples of one network: does it run?"
    )
    parser.add_argument("--busy", action="store_true", help="the budget counts CPU time")
    parser.add_argument(
        "--out", type=Path, help="JSON file; networks that it holds already are kept"
    )
    options = parser.parse_args()
    names, n = (list(NETWORKS)[:1], 64) if options.smallest else (options.networks, N)
    result = (
        json.loads(options.out.read_text())["networks"]
        if options.out and options.out.exists()
        else {}
    )
    for name in names:
        result[name] = {
            "inputs": NETWORKS[name][1],
            "default": in_a_process(name, n, False, options.busy),
        }
        if name in EXACT:
            result[name]["budget=None"] = in_a_process(name, n, True, options.busy)
        report = {
            "environment": environment("cpu")
            | {
                "budget counts": "CPU time" if options.busy else "wall time",
                "load": round(os.getloadavg()[0], 1),
            },
            "samples": n,
            "networks": result,
        }
        text = json.dumps(report, indent=1)
        if options.out:
            options.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
