"""Picture of README.md: label errors and a learning curve of 2,000 images of Fashion-MNIST.

python docs/found.py    # writes docs/images/found.png and found.json; needs the data (gapscope data fetch)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import torch

import gapscope as gs

IMAGES = Path(__file__).parent / "images"
CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")


def _data(n: int = 2000) -> gs.Samples:
    train = gs.load_dataset("fashion_mnist").train
    return train.subset(torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[:n])


def _train(x: torch.Tensor, y: torch.Tensor) -> torch.nn.Module:
    network = gs.build_network("lenet5", input_shape=(1, 28, 28), n_outputs=10)
    gs.train(network, (x, y), gs.TrainingSpec(epochs=20, batch_size=50, learning_rate=0.05, momentum=0.9))
    return network


def main() -> None:
    """Write the picture, and the facts that it shows."""
    data = _data()
    issues = gs.find_label_issues(None, data).to_pandas().head(8)
    curve = gs.learning_curve(_train, data)
    points = sorted((run.trained_on, run.score) for run in curve.trainings)
    figure = plt.figure(figsize=(10, 3.6), layout="constrained")
    parts: Any = figure.subfigures(1, 2, width_ratios=[1.15, 1])
    left, right = parts
    left.suptitle("Suspected label errors (published label → suggestion)", fontsize=10)
    for panel, (_, row) in zip(left.subplots(2, 4).flat, issues.iterrows(), strict=True):
        panel.imshow(data.inputs[int(row["sample"]), 0], cmap="gray_r")
        panel.set_title(f"{CLASSES[int(row['given'])]} → {CLASSES[int(row['suggested'])]}", fontsize=9)
        panel.axis("off")
    right.suptitle("Learning curve of a LeNet-5, extrapolated", fontsize=10)
    panel = right.subplots()
    panel.plot(*zip(*points, strict=True), "o-", color="tab:blue", label="trained on a part, scored on the rest")
    error = [[curve.score - curve.low], [curve.high - curve.score]]
    panel.errorbar(len(data), curve.score, yerr=error, fmt="s", capsize=4, color="tab:orange", label="prediction, 90 %")
    panel.set(xlabel="training samples", ylabel="accuracy on new data", xlim=(0, 1.1 * len(data)))
    panel.legend(fontsize=8, loc="lower right")
    IMAGES.mkdir(exist_ok=True)
    figure.savefig(IMAGES / "found.png", dpi=110)
    facts = {
        "issues": issues["sample"].astype(int).tolist(),
        "learning_curve": [curve.score, curve.low, curve.high],
    }
    (IMAGES / "found.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
