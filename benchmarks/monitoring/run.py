"""Fraction of the training time that a Monitor with default options takes, on four kinds of networks.

    python benchmarks/monitoring/run.py --out benchmarks/results/monitoring.json --seconds 40

Each network is trained by a plain loop for so many seconds; the monitor observes it after every epoch. Wall time of
one thread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.environment import environment
from gapscope.base.files import to_json

BATCH = 32


def tiny_bert() -> tuple[nn.Module, Any, Callable[[nn.Module, Any, Tensor], Tensor]]:
    """A classifier of 24 token ids with two layers of 64 units."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=200, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128,
        max_position_embeddings=24,
    )  # fmt: skip
    config.num_labels = 4
    ids = torch.randint(200, (600, 24))
    data = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids[:, 0] % 4}

    def loss(network: nn.Module, data: Any, rows: Tensor) -> Tensor:
        return network(**{name: part[rows] for name, part in data.items()}).loss

    return BertForSequenceClassification(config), data, loss


def images(
    name: str, shape: tuple[int, ...], n: int = 600, **options: Any
) -> tuple[nn.Module, Any, Callable[..., Tensor]]:
    """A network of gapscope with random images."""
    data = torch.randn(n, *shape), torch.arange(n) % 10

    def loss(network: nn.Module, data: Any, rows: Tensor) -> Tensor:
        return nn.functional.cross_entropy(network(data[0][rows]), data[1][rows])

    return gs.build_network(name, input_shape=shape, n_outputs=10, **options), data, loss


CASES: dict[str, Callable[[], Any]] = {
    "fully connected": lambda: images("fully_connected", (1, 28, 28), n_hidden=2, width=256),
    "LeNet-5": lambda: images("lenet5", (1, 28, 28)),
    "ResNet-18 of quarter width": lambda: images("resnet18", (3, 32, 32), width_multiplier=0.25),
    "tiny BERT": tiny_bert,
}


def run_case(make: Callable[[], Any], seconds: float, fraction: float | None) -> dict[str, Any]:
    """Train for some seconds under a monitor, and return what it took."""
    torch.manual_seed(0)
    network, data, loss = make()
    monitor = gs.Monitor(data, n_samples=64, max_time_fraction=fraction)
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    n = len(data["labels"] if isinstance(data, dict) else data[1])
    start, epoch = time.perf_counter(), 0
    monitor.begin(network)
    while time.perf_counter() - start < seconds:
        network.train()
        for rows in torch.randperm(n).split(BATCH):
            optimizer.zero_grad()
            loss(network, data, rows).backward()
            optimizer.step()
        epoch += 1
        monitor.observe(network, epoch)
    total = time.perf_counter() - start
    cost = monitor.cost
    return {"epochs": epoch, "recordings": cost.recordings, "seconds_per_recording": cost.seconds_per_recording,
            "fraction": cost.seconds / total}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=40.0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = {
        name: {
            "default": run_case(make, given.seconds, 0.1),
            "no limit": run_case(make, given.seconds / 4, None),
        }
        for name, make in CASES.items()
    }
    given.out.write_text(
        to_json({"environment": environment(), "seconds": given.seconds, "rows": rows})
    )


if __name__ == "__main__":
    main()
