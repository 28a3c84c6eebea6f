"""How strong the gradient similarity penalty may be: test accuracy by network, optimizer and strength, over seeds.

    python benchmarks/gradient_similarity/strengths.py --out benchmarks/results/penalty_strengths.json

Fashion-MNIST at 14 x 14 (means of 2 x 2 pixels) with 40 % of the labels resampled from the other classes, batches of
64; AdamW with a learning rate of 0.002, or SGD with 0.05 and a momentum of 0.9. The seed draws the images, the wrong
labels, the initial weights and the batches. The accuracy is that of the last epoch on 2,000 test images with right
labels; nothing was chosen by it. Runs that the JSON file holds already are kept, so that the same command continues.

"ranges" says for every network and optimizer, from means over the seeds that all of its runs share: the largest
strength up to which no accuracy is more than .02 below that without the penalty ("harmless"), the smallest at which the
accuracy is halved or the penalty warned ("too much"), and the best.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from trained import NETWORKS

import gapscope as gs
from gapscope.base.environment import environment

CHOSEN = (
    "fully connected, 3 layers",
    "convolutional, 2 layers",
    "convolutional, GroupNorm",
    "convolutional, BatchNorm",
    "residual, GroupNorm",
    "residual, BatchNorm",
)
STRENGTHS = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, 0.002),
    "SGD": lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9),
}
SETTING = {"samples": 1000, "test": 2000, "size": 14, "wrong": 0.4, "epochs": 12, "batch": 64}
# accuracy below that without the penalty that a harmless strength may cost
HARMLESS = 0.02


def images(seed: int, setting: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images with partly wrong labels, and test images."""
    problem = gs.load_dataset("fashion_mnist")
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(problem.train), generator=generator)[: setting["samples"]]
    assert (
        problem.test is not None
        and problem.train.targets is not None
        and problem.test.targets is not None
    )
    x, test = (
        functional.avg_pool2d(part, 28 // setting["size"])
        for part in (problem.train.inputs[chosen], problem.test.inputs)
    )
    y = problem.train.targets[chosen]
    other = (y + torch.randint(1, 10, y.shape, generator=generator)) % 10
    y = torch.where(torch.rand(len(y), generator=generator) < setting["wrong"], other, y)
    return x, y, test[: setting["test"]], problem.test.targets[: setting["test"]]


def accuracy(network: nn.Module, x: Tensor, y: Tensor) -> float:
    network.eval()
    with torch.no_grad():
        right = (network(x).argmax(1) == y).float().mean()
    network.train()
    return round(float(right), 4)


def trained(
    name: str, optimizer_name: str, strength: float, seed: int, setting: dict[str, Any]
) -> dict[str, Any]:
    x, y, test_x, test_y = images(seed, setting)
    torch.manual_seed(seed)
    network = NETWORKS[name](setting["size"]).train()
    optimizer = OPTIMIZERS[optimizer_name](network.parameters())
    penalty = gs.GradientSimilarityPenalty(strength, seed=seed) if strength else None
    start = time.process_time()
    with warnings.catch_warnings(record=True) as text:
        warnings.simplefilter("always")
        for _ in range(setting["epochs"]):
            for part in torch.randperm(len(x)).split(setting["batch"]):
                outputs, value = (
                    penalty.forward_with_penalty(network, x[part])
                    if penalty
                    else (network(x[part]), 0.0)
                )
                optimizer.zero_grad()
                (functional.cross_entropy(outputs, y[part]) + value).backward()
                optimizer.step()
    return {
        "network": name,
        "optimizer": optimizer_name,
        "strength": strength,
        "seed": seed,
        "train_accuracy": accuracy(network, x, y),
        "test_accuracy": accuracy(network, test_x, test_y),
        "warned": any("gradient similarity penalty" in str(item.message) for item in text),
        "cpu_seconds": round(time.process_time() - start, 2),
    }


def ranges(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Harmless, best and too large strengths of every network and optimizer."""
    result = []
    for name, optimizer in dict.fromkeys((run["network"], run["optimizer"]) for run in runs):
        here = [run for run in runs if (run["network"], run["optimizer"]) == (name, optimizer)]
        seeds = set.intersection(
            *({run["seed"] for run in here if run["strength"] == s} for s in STRENGTHS)
        )
        if not seeds:
            continue
        here = [run for run in here if run["seed"] in seeds]
        mean = {
            s: statistics.mean(r["test_accuracy"] for r in here if r["strength"] == s)
            for s in STRENGTHS
        }
        warned = {
            s for s in STRENGTHS if any(run["warned"] for run in here if run["strength"] == s)
        }
        lost = [s for s in STRENGTHS if mean[s] < mean[0.0] - HARMLESS]
        result.append(
            {
                "network": name,
                "optimizer": optimizer,
                "seeds": len(seeds),
                "accuracy": {f"{strength:g}": round(value, 4) for strength, value in mean.items()},
                "warned": sorted(warned),
                "harmless": max(s for s in STRENGTHS if not lost or s < min(lost)),
                "too_much": min(
                    (s for s in STRENGTHS if s in warned or mean[s] < mean[0.0] / 2), default=None
                ),
                "best": max(mean, key=lambda strength: mean[strength]),
            }
        )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--smallest", action="store_true", help="one short run: does it run?")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    setting = SETTING | ({"samples": 64, "test": 64, "epochs": 1} if options.smallest else {})
    runs = (
        json.loads(options.out.read_text())["runs"] if options.out and options.out.exists() else []
    )
    done = {(run["network"], run["optimizer"], run["strength"], run["seed"]) for run in runs}
    grid = list(itertools.product(range(options.seeds), CHOSEN, OPTIMIZERS, STRENGTHS))
    for seed, name, optimizer, strength in grid[1:2] if options.smallest else grid:
        if (name, optimizer, strength, seed) in done:
            continue
        runs.append(trained(name, optimizer, strength, seed, setting))
        report = {
            "environment": environment("cpu"),
            "setting": setting,
            "ranges": ranges(runs),
            "runs": runs,
        }
        text = json.dumps(report, indent=1)
        if options.out:
            options.out.write_text(text + "\n")
        print(json.dumps(runs[-1]), flush=True)


if __name__ == "__main__":
    main()
