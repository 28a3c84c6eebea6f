"""All measures of one ResNet-18 at once against one after the other, by CPU time of this process.

In every round each measure is taken alone, then all are taken together; every other round begins with the latter. All
without a budget, on the same samples with the same generators, after a first turn on two samples that pays for
imports; the ratio is what counts. A last turn takes each measure while all shared work is kept already: what it takes
then cannot be shared, and the sum of that is the floor.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import gapscope as gs
from gapscope.base.environment import environment
from gapscope.base.errors import GapscopeError
from gapscope.base.samples import Samples
from gapscope.base.specs import TrainingSpec
from gapscope.inspection.sharing import sharing
from gapscope.measures.registry import measures
from gapscope.training.loop import train

# their cost grows faster than the number of samples, or they need no network
LEFT_OUT = ("ntk_logdet", "gradient_neighbours", "kernel_leave_one_out", "training_loss_sum")


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU time of one piece of work."""
    start = time.process_time()
    work()
    return time.process_time() - start


def images(n: int, size: int) -> tuple[Tensor, Tensor]:
    """Images of CIFAR-10, cut to a corner of `size` pixels, with their labels."""
    train_split = gs.load("cifar10").train
    assert train_split.targets is not None
    return train_split.inputs[:n, :, :size, :size].contiguous(), train_split.targets[:n]


def rounds(chosen: Sequence[str], take: Callable[[Sequence[str]], Any], count: int) -> list[dict[str, Any]]:
    """Both ways in turns."""
    found = []
    for number in range(count):
        together = [cpu_seconds(lambda: take(chosen))] if number % 2 else []
        alone = {name: cpu_seconds(lambda name=name: take([name])) for name in chosen}
        together = together or [cpu_seconds(lambda: take(chosen))]
        total = sum(alone.values())
        found.append({"alone": alone, "sum": total, "together": together[0], "ratio": together[0] / total})
        print(
            f"round {number}: one after the other {total:.1f} s, at once {together[0]:.1f} s: {found[-1]['ratio']:.2f}"
        )
    return found


def unshared(chosen: Sequence[str], take: Callable[[Sequence[str]], Any]) -> dict[str, float]:
    """What each measure takes while all shared work is kept already."""
    with sharing():
        take(chosen)
        return {name: cpu_seconds(lambda name=name: take([name])) for name in chosen}


def main() -> None:
    """Measure both ways and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--width", type=float, default=1 / 16)
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=0, help="Epochs of training before it is measured.")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=None)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("one_pass.json"))
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    shape = (3, given.size, given.size)
    network = gs.build("resnet18", input_shape=shape, n_outputs=10, width_multiplier=given.width)
    initial = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    data = images(given.images, given.size)
    if given.epochs:
        train(network, Samples(*data), TrainingSpec(optimizer="adam", learning_rate=0.003, epochs=given.epochs))
    else:
        initial = {name: 0.9 * tensor for name, tensor in initial.items()}
    network.eval()
    chosen = given.only or [name for name in measures() if name not in LEFT_OUT]

    def take(names: Sequence[str], samples: Any = data) -> gs.Readings:
        return gs.measure(network, samples, list(names), initial=initial, budget=None, progress=False)

    for name in chosen:
        try:
            take([name], (data[0][:2], data[1][:2]))
        except GapscopeError as error:
            print(f"{name} has no value for two samples: {error}")
    found = rounds(chosen, take, given.rounds)
    floor = unshared(chosen, take)
    ratio, least = statistics.median(row["ratio"] for row in found), sum(floor.values())
    total = statistics.median(row["sum"] for row in found)
    print(f"median ratio {ratio:.2f}; what cannot be shared takes {least:.1f} s, {least / total:.2f} of the sum")
    row = {
        "environment": environment(), "images": given.images, "width_multiplier": given.width, "size": given.size,
        "epochs": given.epochs, "accuracy": take(["accuracy"])["accuracy"].value, "ratio": ratio,
        "floor": least / total, "rounds": found, "unshared": floor,
    }  # fmt: skip
    path = given.output
    known = json.loads(path.read_text())["rows"] if path.exists() else []
    key = ("images", "width_multiplier", "size", "epochs")
    kept = [other for other in known if [other[name] for name in key] != [row[name] for name in key]]
    path.write_text(json.dumps({"rows": [*kept, row]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
