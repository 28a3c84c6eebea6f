"""How strong the gradient similarity penalty may be: test accuracy by network and strength, over seeds.

    python benchmarks/gradient_similarity/strengths.py --out benchmarks/results/penalty_strengths.json

Fashion-MNIST at 14 x 14 (means of 2 x 2 pixels) with 40 % of the labels drawn anew from the other classes, AdamW with a
learning rate of 0.002, batches of 64. The seed draws the images, the wrong labels, the initial weights and the batches.
The accuracy is that of the last epoch on 2,000 test images with right labels; nothing was chosen by it. Runs that the
JSON file holds already are kept, so that the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from trained import NETWORKS

import gapscope as gs

CHOSEN = (
    "fully connected, 3 layers",
    "convolutional, 2 layers",
    "convolutional, GroupNorm",
    "convolutional, BatchNorm",
    "residual, GroupNorm",
    "residual, BatchNorm",
)
STRENGTHS = (0.0, 0.0003, 0.003, 0.03, 0.3)
SETTING = {"samples": 1000, "test": 2000, "size": 14, "wrong": 0.4, "epochs": 12, "batch": 64, "learning_rate": 0.002}


def images(seed: int, setting: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images with partly wrong labels, and test images."""
    problem = gs.load("fashion_mnist")
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(problem.train), generator=generator)[: setting["samples"]]
    assert problem.test is not None and problem.train.targets is not None and problem.test.targets is not None
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


def trained(name: str, strength: float, seed: int, setting: dict[str, Any]) -> dict[str, Any]:
    x, y, test_x, test_y = images(seed, setting)
    torch.manual_seed(seed)
    network = NETWORKS[name](setting["size"]).train()
    optimizer = torch.optim.AdamW(network.parameters(), setting["learning_rate"])
    penalty = gs.GradientSimilarityPenalty(strength, seed=seed) if strength else None
    start = time.process_time()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(setting["epochs"]):
            for part in torch.randperm(len(x)).split(setting["batch"]):
                outputs, value = penalty.with_outputs(network, x[part]) if penalty else (network(x[part]), 0.0)
                optimizer.zero_grad()
                (functional.cross_entropy(outputs, y[part]) + value).backward()
                optimizer.step()
    return {
        "network": name,
        "strength": strength,
        "seed": seed,
        "train_accuracy": accuracy(network, x, y),
        "test_accuracy": accuracy(network, test_x, test_y),
        "warned": any("gradient similarity penalty" in str(item.message) for item in said),
        "cpu_seconds": round(time.process_time() - start, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--smallest", action="store_true", help="one short run: does it run?")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    setting = SETTING | ({"samples": 64, "test": 64, "epochs": 1} if options.smallest else {})
    runs = json.loads(options.out.read_text())["runs"] if options.out and options.out.exists() else []
    done = {(run["network"], run["strength"], run["seed"]) for run in runs}
    grid = [(name, strength, seed) for seed in range(options.seeds) for name in CHOSEN for strength in STRENGTHS]
    for name, strength, seed in grid[1:2] if options.smallest else grid:
        if (name, strength, seed) in done:
            continue
        runs.append(trained(name, strength, seed, setting))
        environment = {"torch": torch.__version__, "python": platform.python_version(), "threads": 1}
        text = json.dumps({"environment": environment, "setting": setting, "runs": runs}, indent=1)
        if options.out:
            options.out.write_text(text + "\n")
        print(json.dumps(runs[-1]), flush=True)


if __name__ == "__main__":
    main()
