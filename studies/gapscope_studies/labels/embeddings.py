"""The rate of label noise on natural images, from embeddings of a pretrained network.

    python -m gapscope_studies.labels.embeddings WEIGHTS results/labels/embeddings.json

WEIGHTS is a ResNet-20 for CIFAR-10 (option A shortcuts, keys conv1, bn1, layer1.0.conv1, ..., linear). It was trained
on the training images, so that errors are planted into test images, which it has not seen.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

import gapscope as gs
from gapscope.base.environment import environment
from gapscope.base.errors import NotMeasurable
from gapscope.base.files import to_json
from gapscope.data import inject_label_noise
from gapscope_studies.kit.light import light_json
from gapscope_studies.labels.cells import pair_wise
from gapscope_studies.labels.summary import scores

N, SEEDS, RATES = 600, range(3), (0.0, 0.05, 0.1, 0.2)
MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


def embed(x: Tensor, weights: dict[str, Tensor]) -> Tensor:
    """Pooled last features [n, 64] of RGB images in [0, 1]."""

    def norm(h: Tensor, name: str) -> Tensor:
        mean, variance = weights[f"{name}.running_mean"], weights[f"{name}.running_var"]
        return F.batch_norm(h, mean, variance, weights[f"{name}.weight"], weights[f"{name}.bias"])

    h = F.relu(
        norm(F.conv2d((x - MEAN[:, None, None]) / STD[:, None, None], weights["conv1.weight"], padding=1), "bn1")
    )
    for stage in (1, 2, 3):
        for block in range(3):
            name, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            out = F.relu(norm(F.conv2d(h, weights[f"{name}.conv1.weight"], stride=stride, padding=1), f"{name}.bn1"))
            out = norm(F.conv2d(out, weights[f"{name}.conv2.weight"], padding=1), f"{name}.bn2")
            if stride == 2:
                more = out.shape[1] - h.shape[1]
                h = F.pad(h[:, :, ::2, ::2], (0, 0, 0, 0, more // 2, more // 2))
            h = F.relu(out + h)
    return h.mean((2, 3))


def main(weights: Path, path: Path) -> None:
    """Plant errors, estimate, and write every draw."""
    torch.set_num_threads(1)
    problem, state, rows = gs.load_dataset("cifar10"), load_file(weights), []
    test = problem.test
    assert test is not None and test.targets is not None
    for seed in SEEDS:
        generator = torch.Generator().manual_seed(3001 + seed)
        chosen = torch.randperm(len(test), generator=generator)[:N]
        y = test.targets[chosen]
        features = embed(test.inputs[chosen], state)
        for rate in RATES:
            for kind in ("symmetric", "pair-wise")[: 1 if rate == 0 else 2]:
                plant = inject_label_noise if kind == "symmetric" else pair_wise
                noisy = plant(y, rate, 10, generator)
                wrong = noisy != y
                row = {"kind": kind, "seed": seed, "wrong": float(wrong.double().mean()), "answered": True}
                issues = gs.find_label_issues(features=features, labels=noisy)
                suspicion = torch.empty(N).scatter_(0, issues.indices, -issues.margin.float())
                if rate:
                    row |= scores(suspicion.double().numpy(), wrong.numpy())
                try:
                    noise = gs.estimate_label_noise(features=features, labels=noisy)
                    covered = noise.low - 1e-9 <= row["wrong"] <= noise.high + 1e-9
                    row |= {"rate": noise.rate, "low": noise.low, "high": noise.high, "covered": covered}
                except NotMeasurable:
                    row["answered"] = False
                rows.append(row)
    answered = [row for row in rows if row["answered"]]
    content = {"environment": environment(), "draws": len(rows), "answered": len(answered),
               "covered": sum(row["covered"] for row in answered),
               "mean AUROC": sum(row.get("auroc", 0.0) for row in rows) / sum("auroc" in row for row in rows),
               "rows": rows}  # fmt: skip
    path.write_text(light_json(to_json(content)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
